"""The documentation holds: its queries parse, its programs and commands do as shown, its links lead on."""

from __future__ import annotations

import doctest
import functools
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from kaicep import testing
from kaicep.errors import Mistake, SourceText
from kaicep.language.parse_chicep import parse_chi
from kaicep.language.parse_epsparql import parse_ep
from kaicep.live.event_service import Service
from kaicep.live.event_service import Settings as Live
from kaicep.live.graph import Consumer, Graph, Supplier
from kaicep.live.metrics import figures, prometheus
from kaicep.server.app import as_prometheus

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / "benchmarks" / "README.md"])
# The commands of these pages make files: they are typed one after the other in a folder of their own.
AS_TYPED = ("docs/start-control-room.md", "docs/operations.md")
CAMPUS = {
    "bd": "http://cei.usc.edu/Building.owl#",
    "ee": "http://cei.usc.edu/Equipment.owl#",
    "evt": "http://cei.usc.edu/Event.owl#",
    "hvc": "http://cei.usc.edu/HVAC.owl#",
    "org": "http://cei.usc.edu/Organization.owl#",
}


class Block(NamedTuple):
    """A fenced block: where it begins, in which language it is, and its text."""

    place: str
    language: str
    text: str


def blocks_of(name: str, page: str) -> list[Block]:
    """The fenced blocks of a page."""
    fenced = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
    return [
        Block(f"{name}:{page.count(chr(10), 0, found.start()) + 1}", found[1], found[2])
        for found in fenced.finditer(page)
    ]


def named(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


BLOCKS = [each for page in PAGES for each in blocks_of(named(page), page.read_text("utf-8"))]
# Beside what is run: other languages' side of a comparison, what somebody else prints, files of knowledge.
SHOWN = {"", "csv", "text", "pycon", "py", "sh", "sql", "java", "sparql", "turtle"}
RUN = {"chi", "console", "epsparql", "json", "python", "toml"}


def test_no_block_is_in_a_language_that_nobody_looks_at() -> None:
    assert not [each.place for each in BLOCKS if each.language not in SHOWN | RUN]


def in_language(language: str) -> list[object]:
    return [pytest.param(each, id=each.place) for each in BLOCKS if each.language == language]


def in_page(page: str, language: str) -> list[object]:
    return [each for each in in_language(language) if str(each.id).startswith(f"{page}:")]  # type: ignore[attr-defined]


@pytest.mark.parametrize("block", in_language("chi"))
def test_chi_cep_parses(block: Block) -> None:
    """With the prefixes of the campus, and `b:` of the building in the recipes."""
    parse_chi(SourceText(block.place, block.text), prefixes={**CAMPUS, "b": "http://example.org/building#"})


@pytest.mark.parametrize("block", in_language("epsparql"))
def test_ep_sparql_parses(block: Block) -> None:
    parse_ep(SourceText(block.place, block.text), prefixes={})


# What the examples of the references are run over.
STREAMS = {
    "airflowReport": """
        ts  | sensorID  | flowrate | vendor
        0   | RTH102VOL | 380.0    | v
        60  | RTH110VOL | 480.0    | v
        120 | RTH102VOL | 540.0    | v
        180 | RTH110VOL | 620.0    | w
        240 | RTH102VOL | 610.0    | w
        300 | RTH110VOL | 90.0     | w
    """,
    "doorReport": """
        ts  | roomID | open
        90  | RTH102 | true
        200 | RTH110 | false
    """,
    "rise": """
        ts | sensorID | rise
        60 | D105VOL  | 60.0
    """,
}
ANNOTATIONS = [
    {
        "prefixes": CAMPUS,
        "stream": "airflowReport",
        "class": "evt:AirflowReport",
        "attributes": {"flowrate": "hvc:airflow"},
        "entities": {"sensorID": {"property": "evt:hasSource", "iri": "ee:{value}"}},
    },
    {
        "prefixes": CAMPUS,
        "stream": "doorReport",
        "class": "evt:DoorReport",
        "entities": {"roomID": {"property": "evt:hasSource", "iri": "bd:{value}"}},
    },
]


@functools.cache
def campus() -> str:
    return "\n".join(
        each.read_text("utf-8") for each in sorted((ROOT / "examples/campus/data/knowledge").glob("*.ttl"))
    )


@pytest.mark.parametrize("block", in_page("docs/chi-cep.md", "chi"))
def test_every_construct_of_chi_cep_runs(block: Block) -> None:
    """Its types are right, the reference can evaluate it, and the engine finds the same, or refuses."""
    used = [name for name in STREAMS if re.search(rf"\b{name}\b", block.text)] or ["airflowReport"]
    events = {name: STREAMS[name] for name in used}
    shown = testing.prepare(
        {"shown.chi": block.text},
        events,
        knowledge=campus(),
        annotations=[each for each in ANNOTATIONS if each["stream"] in used],
        now="1970-01-01T00:00:00Z",
    )
    expected = shown.matches("reference")
    assert shown.matches("inprocess") == expected


TRIPLES = """
    triple                | start | end
    :acme :hasStockPrice 20 | 0   | 0
    :acme :downratedBy :bureau | 60 | 120
    :acme :hasStockPrice 9  | 180 | 180
    :acme a :Bank           | 180 | 180
    :acme :hasStockPrice 40 | 240 | 240
"""


@pytest.mark.parametrize("block", in_page("docs/ep-sparql.md", "epsparql"))
def test_every_construct_of_ep_sparql_runs(block: Block) -> None:
    found, judged = (
        testing.run({"shown.epsparql": block.text}, events={"ticks": TRIPLES}, host=host)
        for host in ("inprocess", "reference")
    )
    assert found == judged


# What semantics 2 and 3 name; each has an example on the page of its language.
CONSTRUCTS = {
    "docs/chi-cep.md": r"""
        PREFIX  SELECT\ \*  AS  FROM  LATEST\ \(\?d,  LATEST\ \(\?d\?,
        WITHIN\ \[  WITHIN\ \(  now\ -  WHERE  \#  FILTER  JOIN  IN
        NOT\ IN  null  &&  \|\|  AND  OR  NOT  %  \*  /  !=  <=  >=  abs  floor  ceil  round  lower
        upper  contains  startsWith  regex  coalesce  if  hour  dayOfWeek  us  ms  s  min  h  d
        hvc:airflow  SEQ  \?b\+  \?b\*  \?c\?  \{3\}  \{2,\}  \{,2\}  \{2,4\}  PREV  FIRST  LAST
        \(\?b\ \|\ \?c\)  \(\?b\ &\ \?c\)  !\?b  WINDOW  sliding  batch  MATCH\ strict  MATCH\ any
        MATCH\ next  NO\ SKIP  SKIP\ TO\ NEXT  SKIP\ PAST\ LAST  SKIP\ TO\ FIRST  SKIP\ TO\ LAST
        PARTITION\ BY\ \?a\.  PARTITION\ BY\ \?room
        GROUP\ BY\ \?e\.  GROUP\ BY\ \?room  HAVING  COUNT  DISTINCT  SUM  AVG  MIN  MAX  STDDEV
        PATH  OPTIONAL  UNION  MINUS  NOT\ EXISTS  BIND  VALUES
    """,
    "docs/ep-sparql.md": r"""
        PREFIX  SELECT\ \*  DISTINCT  AS  WHERE  SEQ  EQUALS  OPTIONALSEQ  EQUALSOPTIONAL  DURING  MEETS
        STARTS  FINISHES  PAR  NOT\ \{  getDURATION  getSTARTTIME  getENDTIME  FILTER  OPTIONAL  UNION
        MINUS  BIND  VALUES  EXISTS  NOT\ EXISTS  \{\ SELECT  GROUP\ BY  HAVING  COUNT  SUM  AVG  MIN
        MAX  SAMPLE  GROUP_CONCAT  CONSTRUCT  _:  CONSUMPTION\ recent  CONSUMPTION\ chronological
        CONSUMPTION\ unrestricted  \^  FROM\ NAMED\ WINDOW  RANGE  STEP  ROWS  ISTREAM
    """,
}


@pytest.mark.parametrize("page", CONSTRUCTS)
def test_every_construct_has_an_example(page: str) -> None:
    shown = "\n".join(
        each.text
        for each in BLOCKS
        if each.place.startswith(f"{page}:") and each.language in ("chi", "epsparql")
    )
    wanted = re.split(r"(?<!\\)\s+", CONSTRUCTS[page].strip())
    assert not [each for each in wanted if not re.search(_word(each), shown)]


def _word(pattern: str) -> str:
    """A name stands by itself, or after a number if it is a unit of time."""
    return rf"(?<![A-Za-z]){pattern}(?![A-Za-z])" if pattern.isalpha() else pattern


@pytest.mark.parametrize("block", in_language("json"))
def test_json_parses(block: Block) -> None:
    """One value, or one a line."""
    try:
        json.loads(block.text)
    except ValueError:
        for line in block.text.splitlines():
            json.loads(line)


@pytest.mark.parametrize("block", in_language("toml"))
def test_toml_parses(block: Block) -> None:
    tomllib.loads(block.text)


def test_a_wrong_query_would_be_found() -> None:
    [block] = blocks_of("page.md", "text\n\n```chi\nSELECT ?e.x FILTER (?e.x >)\n```\n")
    assert block.place == "page.md:3"
    with pytest.raises(Mistake, match=r"page\.md:3"):
        parse_chi(SourceText(block.place, block.text), prefixes=CAMPUS)


@pytest.mark.parametrize("page", sorted({b.place.split(":")[0] for b in BLOCKS if b.language == "python"}))
def test_python_runs_as_shown(page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sessions of a page, one after the other, as a reader would type them."""
    monkeypatch.chdir(ROOT)
    known: dict[str, object] = {}
    report: list[str] = []
    for block in BLOCKS:
        if block.language == "python" and block.place.startswith(f"{page}:"):
            shown = doctest.DocTestParser().get_doctest(block.text, known, block.place, None, 0)
            assert shown.examples, f"{block.place}: a python block is written as a session, with >>>"
            doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(
                shown, out=report.append, clear_globs=False
            )
            known = shown.globs
    assert not report, "".join(report)


def typed(block: Block) -> Iterator[tuple[str, str]]:
    """The commands of a block, `$ command`, each with what it prints: the lines up to the next."""
    for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
        found = re.fullmatch(r"((?:[^\n]*\\\n)*[^\n]*)\n(.*)", part, re.DOTALL)
        assert found, block.place
        yield found[1], found[2]


def sessions() -> list[object]:
    """The commands of console blocks with what they print."""
    found = []
    for block in BLOCKS:
        if block.language == "console" and block.place.split(":")[0] not in AS_TYPED:
            for command, printed in typed(block):
                words = shlex.split(command.replace("\\\n", " "))
                found.append(pytest.param(words, printed, id=f"{block.place} {' '.join(words[:2])}"))
    return found


@pytest.mark.slow
@pytest.mark.parametrize(("words", "printed"), sessions())
def test_commands_print_what_is_shown(words: list[str], printed: str) -> None:
    assert words[0].endswith("kaicep")
    done = subprocess.run(
        [sys.executable, "-m", "kaicep", *words[1:]],
        cwd=ROOT,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )
    said = done.stdout or done.stderr
    assert doctest.OutputChecker().check_output(printed, said, doctest.ELLIPSIS), said


@pytest.mark.slow
@pytest.mark.parametrize("page", AS_TYPED)
def test_a_page_does_what_it_shows_as_it_is_typed(page: str, tmp_path: Path) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, call in (("python", ""), ("kaicep", "-m kaicep")):
        (programs / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {call} "$@"\n')
        (programs / name).chmod(0o755)
    path = os.pathsep.join(each for each in sys.path if each)
    env = {**os.environ, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": path}
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    folder = str(tmp_path)
    for block in BLOCKS:
        if block.language == "console" and block.place.startswith(f"{page}:"):
            for command, printed in typed(block):
                script = f'cd "{folder}"\n{command}\nstatus=$?\npwd > "{tmp_path}/pwd"\nexit $status'
                done = subprocess.run(
                    ["bash", "-c", script], env=env, capture_output=True, text=True, stdin=subprocess.DEVNULL
                )
                folder = (tmp_path / "pwd").read_text().strip()
                said = done.stdout or done.stderr
                same = doctest.OutputChecker().check_output(printed, said, doctest.ELLIPSIS)
                assert same, f"{block.place}: {command}\n{said}"


def test_the_metrics_of_the_page_are_those_that_are_served() -> None:
    page = (ROOT / "docs" / "operations.md").read_text("utf-8")
    tables = "\n".join(line for line in page.splitlines() if line.startswith("| `kaicep_"))
    named = set(re.findall(r"`(kaicep_\w+)`", tables))
    stream, query, sink = {"events": 1}, {"state": "live"}, {"written": 1}
    engine = dict.fromkeys(("newest", "events", "sent", "widest", "written"), 1)
    rows = {"streams": {"s": stream}, "queries": {"q": query}, "sinks": {"k": sink}}
    served = as_prometheus({**rows, "engine": engine})
    with Service(Graph.of(Supplier("s", 1_000), Consumer("c", "s", 1)), Live()) as service:
        served += prometheus(figures(service))
    assert named == set(re.findall(r"^# TYPE (\w+)", served, re.MULTILINE))


def test_every_room_has_a_page() -> None:
    rooms = {each.parent.name for each in (ROOT / "src" / "kaicep").glob("*/__init__.py")}
    assert {each.stem for each in (ROOT / "docs" / "internals").glob("*.md")} == rooms


def test_every_page_is_in_the_index() -> None:
    index = (ROOT / "docs" / "index.md").read_text("utf-8")
    missing = {each.name for each in (ROOT / "docs").glob("*.md")} - {"index.md"}
    assert not [each for each in missing if f"({each})" not in index]


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    prose = re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", prose, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", each.lower()).replace(" ", "-") for each in headings}


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_links_lead_somewhere(page: Path) -> None:
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text("utf-8")):
        if re.match(r"https?:", target):
            continue
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        if not there.exists() or (anchor and anchor not in anchors(there)):
            broken.append(target)
    assert not broken
