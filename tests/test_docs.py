"""The documentation holds: its queries parse, its programs and commands do as shown, its links lead on."""

from __future__ import annotations

import doctest
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from kaicep.errors import Mistake, Source
from kaicep.language.chicep import parse_chi
from kaicep.language.epsparql import parse_ep

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), ROOT / "benchmarks" / "README.md"])
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


BLOCKS = [each for page in PAGES for each in blocks_of(page.name, page.read_text("utf-8"))]


def in_language(language: str) -> list[object]:
    return [pytest.param(each, id=each.place) for each in BLOCKS if each.language == language]


@pytest.mark.parametrize("block", in_language("chi"))
def test_chi_cep_parses(block: Block) -> None:
    parse_chi(Source(block.place, block.text), prefixes=CAMPUS)


@pytest.mark.parametrize("block", in_language("epsparql"))
def test_ep_sparql_parses(block: Block) -> None:
    parse_ep(Source(block.place, block.text), prefixes={})


def test_a_wrong_query_would_be_found() -> None:
    [block] = blocks_of("page.md", "text\n\n```chi\nSELECT ?e.x FILTER (?e.x >)\n```\n")
    assert block.place == "page.md:3"
    with pytest.raises(Mistake, match=r"page\.md:3"):
        parse_chi(Source(block.place, block.text), prefixes=CAMPUS)


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


def sessions() -> list[object]:
    """The commands of console blocks with what they print: `$ command`, and lines up to the next."""
    found = []
    for block in BLOCKS:
        if block.language == "console":
            for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
                command, printed = re.fullmatch(r"((?:[^\n]*\\\n)*[^\n]*)\n(.*)", part, re.DOTALL).groups()  # type: ignore[union-attr]
                words = shlex.split(command.replace("\\\n", " "))
                found.append(pytest.param(words, printed, id=f"{block.place} {' '.join(words[:2])}"))
    return found


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


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    prose = re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", prose, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", each.lower()).replace(" ", "-") for each in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
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
