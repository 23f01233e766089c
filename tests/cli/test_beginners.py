"""What goes wrong on the first day, beside mistakes in the query itself: each is told with a way out.

Mistakes in queries are in `tests/check_errors`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., Any]
FILES = {
    "high.chi": "SELECT ?e.sensor FROM (?e, air) FILTER (?e.flow > 500)\n",
    "concept.chi": "SELECT ?e.sensor FROM (?e, air) FILTER (?e.h:airflow > 500)\n",
    "all.chi": "SELECT ?e.sensor FROM (?e, air)\n",
    "pair.chi": "SELECT ?a.sensor FROM (?a, air), (?b, air) SEQ (?a, ?b) WINDOW (?a, ?b, 5min)\n",
    "data/air.jsonl": '{"ts": 1, "sensor": "s1", "flow": 510}\n',
    "data/annotations/air.json": (
        '{"stream": "air", "prefixes": {"h": "urn:h:"}, "attributes": {"flow": "h:airflow"}}'
    ),
    "semicolons.csv": "ts;sensor;flow\n2012-05-07T09:00;s1;500,5\n",
    "commas.csv": 'ts,sensor,flow\n2012-05-07T09:00,s1,"500,5"\n2012-05-07T09:01,s1,"510,5"\n',
    "missing.csv": "ts,sensor,flow\n1,s1,500\n2,s1,510\n3,s1,n/a\n",
    "quoted.jsonl": '{"ts": 1, "sensor": "s1", "flow": "510"}\n',
    "millis.jsonl": '{"ts": 1336381200000, "sensor": "s1", "flow": 510}\n',
    "headless.csv": "2012-05-07T09:00,s1,500\n",
    "time.jsonl": '{"time": 1, "sensor": "s1", "flow": 510}\n',
    "no-time.jsonl": '{"sensor": "s1", "flow": 510}\n',
    "dates.csv": "ts,sensor,flow\n07.05.2012 09:00,s1,510\n",
    "american.csv": "ts,sensor,flow\n5/27/2012 9:00 PM,s1,510\n",
}

CASES = """\
$ match concept.chi --stream air=data/air.jsonl
2
error: unknown prefix h:
 --> concept.chi:1:44
  |
1 | SELECT ?e.sensor FROM (?e, air) FILTER (?e.h:airflow > 500)
  |                                            ^^^^^^^^^
  = help: did you forget the annotation? There is one beside the data: --annotation data/annotations/air.json

$ match high.chi --stream air=semicolons.csv
2
error: semicolons.csv: its columns are separated by semicolons
  = help: say so in the annotation: "csv": {"delimiter": ";"}, with "decimal": "," if its numbers are \
written so

$ match high.chi --stream air=commas.csv
2
error: cannot compare a string and an int64 value
 --> high.chi:1:41
  |
1 | SELECT ?e.sensor FROM (?e, air) FILTER (?e.flow > 500)
  |                                         ^^^^^^^^^^^^^
  = help: ?e.flow has decimal commas, such as "500,5": "csv": {"decimal": ","} in the annotation

$ match high.chi --stream air=missing.csv
2
error: cannot compare a string and an int64 value
 --> high.chi:1:41
  |
1 | SELECT ?e.sensor FROM (?e, air) FILTER (?e.flow > 500)
  |                                         ^^^^^^^^^^^^^
  = help: ?e.flow is text because of values such as "n/a"; with "types": {"flow": "float64"} in the \
annotation those are bad records, with "nulls": ["n/a"] null

$ match high.chi --stream air=quoted.jsonl
2
error: cannot compare a string and an int64 value
 --> high.chi:1:41
  |
1 | SELECT ?e.sensor FROM (?e, air) FILTER (?e.flow > 500)
  |                                         ^^^^^^^^^^^^^
  = help: ?e.flow has numbers as text, such as "510": declare them, "types": {"flow": "float64"} \
in the annotation

$ match all.chi --stream air=millis.jsonl
1
warning: no record of air could be read: ts: 1336381200000 is not a time between the years 1 and 9999 in \
epoch seconds; as epoch milliseconds it is one: "time_unit": "ms" in the annotation

dead letters: 1 record could not be read; --dead-letters FILE keeps them
  millis.jsonl:1: ts: 1336381200000 is not a time between the years 1 and 9999 in \
epoch seconds; as epoch milliseconds it is one: "time_unit": "ms" in the annotation

$ match high.chi --stream air=headless.csv
2
error: headless.csv: there is no header: the first row has the value 2012-05-07T09:00
  = help: the first row must name every column, each differently

$ match all.chi --stream air=time.jsonl
1
warning: no record of air could be read: no time: it has no attribute ts, and no annotation names another; \
if time is it: "time": "time" in the annotation

dead letters: 1 record could not be read; --dead-letters FILE keeps them
  time.jsonl:1: no time: it has no attribute ts, and no annotation names another; \
if time is it: "time": "time" in the annotation

$ match all.chi --stream air=no-time.jsonl
1
warning: no record of air could be read: no time: it has no attribute ts, and no annotation names another

dead letters: 1 record could not be read; --dead-letters FILE keeps them
  no-time.jsonl:1: no time: it has no attribute ts, and no annotation names another

$ match all.chi --stream air=dates.csv
1
warning: no record of air could be read: ts: "07.05.2012 09:00" is neither an ISO 8601 time \
nor epoch seconds; \
it may be of the form "time_format": "%d.%m.%Y %H:%M" in the annotation

dead letters: 1 record could not be read; --dead-letters FILE keeps them
  dates.csv:2: ts: "07.05.2012 09:00" is neither an ISO 8601 time \
nor epoch seconds; \
it may be of the form "time_format": "%d.%m.%Y %H:%M" in the annotation

$ match all.chi --stream air=american.csv
1
warning: no record of air could be read: ts: "5/27/2012 9:00 PM" is neither an ISO 8601 time \
nor epoch seconds; \
it may be of the form "time_format": "%m/%d/%Y %I:%M %p" in the annotation

dead letters: 1 record could not be read; --dead-letters FILE keeps them
  american.csv:2: ts: "5/27/2012 9:00 PM" is neither an ISO 8601 time \
nor epoch seconds; \
it may be of the form "time_format": "%m/%d/%Y %I:%M %p" in the annotation

$ match
2
error: no query is given
  = help: give a file such as QUERY.chi, or --deployment kaicep.toml
"""


def case(text: str) -> Any:
    command, status, message = text.split("\n", 2)
    return pytest.param(command.split(), int(status), message.rstrip("\n") + "\n", id=command)


@pytest.mark.parametrize(("words", "status", "message"), [case(each) for each in CASES[2:].split("\n\n$ ")])
def test_what_is_said(words: list[str], status: int, message: str, run: Run, folder: Path) -> None:
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    result = run(*words)
    assert (result.exit_code, result.stdout, result.stderr) == (status, "", message)


def test_a_stream_of_which_nothing_is_known_is_named_once(run: Run, folder: Path) -> None:
    (folder / "pair.chi").write_text(FILES["pair.chi"])
    result = run("check", "pair.chi")
    assert result.exit_code == 0
    assert result.stderr.count("nothing is known of the stream air") == 1


TOML = """\
[streams.air]
source = {kind = "files", path = "data/air.jsonl"}
annotation = "data/annotations/air.json"
types = {flow = "float64"}
[streams.elsewhere]
source = {kind = "generator", count = 3}
"""


@pytest.fixture
def deployment(folder: Path) -> Path:
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    (folder / "queries").mkdir()
    (folder / "queries" / "own.chi").write_text(FILES["concept.chi"])
    (folder / "kaicep.toml").write_text(TOML)
    return folder


def test_a_deployment_brings_streams_annotations_and_knowledge(run: Run, deployment: Path) -> None:
    found = run("match", "concept.chi", "--deployment", "kaicep.toml")
    assert (found.exit_code, found.stderr, found.stdout.count("\n")) == (0, "", 1)
    checked = run("check", "--deployment", "kaicep.toml")
    assert (checked.exit_code, checked.stdout) == (0, "own: ok (chi-CEP, reads air)\n")
    explained = run("explain", "concept.chi", "--deployment", "kaicep.toml")
    assert (explained.exit_code, "flow" in explained.stdout) == (0, True)
    (deployment / "other.jsonl").write_text("")
    other = run("match", "concept.chi", "--deployment", "kaicep.toml", "--stream", "air=other.jsonl")
    assert (other.exit_code, other.stdout) == (0, "")


def test_a_deployment_brings_streams_of_triples(run: Run, deployment: Path) -> None:
    """Alone, and with an annotation that only says how long a blank node's label counts."""
    lines = [f'{{"triple": "_:b <urn:at> <urn:r{n}> .", "start": {n}}}\n' for n in range(2)]
    (deployment / "triples.jsonl").write_text("".join(lines))
    (deployment / "moved.epsparql").write_text(
        "SELECT ?b WHERE { { ?x <urn:at> ?a } SEQ { ?x <urn:at> ?b } }\n"
    )
    (deployment / "one.json").write_text('{"stream": "moves", "blank_nodes": "stream"}')
    source = '[streams.moves]\nsource = {kind = "files", path = "triples.jsonl"}\n'
    for annotation, found in (("", 0), ('annotation = "one.json"\n', 1)):
        (deployment / "kaicep.toml").write_text(TOML + source + annotation)
        result = run("match", "moved.epsparql", "--deployment", "kaicep.toml")
        assert (result.exit_code, result.stdout.count("\n")) == (0, found), result.stderr
        assert "dead letters" not in result.stderr


def test_a_deployment_brings_its_archive(run: Run, deployment: Path) -> None:
    into = ("--stream", "air=data/air.jsonl", "--annotation", "data/annotations/air.json")
    assert run("ingest", *into, "--archive", "state/archive").exit_code == 0
    (deployment / "kaicep.toml").write_text(TOML.partition("types")[0])
    found = run("query", "concept.chi", "--deployment", "kaicep.toml", "--now", "1970-01-01T00:00:00")
    assert (found.exit_code, found.stdout.count("\n")) == (0, 1), found.stderr


def test_a_deployment_that_has_not_run_is_to_be_run_first(run: Run, deployment: Path) -> None:
    for words in (("query", "concept.chi"), ("why", "--not", "own", "--near", "1970-01-01T00:00:01")):
        result = run(*words, "--deployment", "kaicep.toml")
        assert (result.exit_code, result.stdout) == (2, "")
        assert "has not run yet" in result.stderr
        assert "= help: kaicep run kaicep.toml starts it" in result.stderr


def test_check_of_a_deployment_names_a_package_that_is_missing(
    run: Run, deployment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kaicep.deployment import check

    real = check.find_spec
    monkeypatch.setattr(check, "find_spec", lambda name: None if name == "deltalake" else real(name))
    for words in (["run", "--check"], ["run", "--seconds", "0"]):
        result = run(*words)
        assert result.exit_code == 2
        assert "the archive of a deployment needs the package deltalake" in result.stderr
        assert "pip install 'kaicep[delta]'" in result.stderr


def test_colour_is_for_terminals_that_want_it() -> None:
    import io

    from kaicep.cli.arguments import has_colour
    from kaicep.errors import Diagnostic

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    with pytest.MonkeyPatch.context() as settings:
        settings.delenv("NO_COLOR", raising=False)
        settings.setenv("TERM", "xterm")
        assert has_colour(Terminal())
        assert not has_colour(io.StringIO())
        settings.setenv("NO_COLOR", "1")
        assert not has_colour(Terminal())
    said = Diagnostic("no", hint="yes")
    assert "\x1b[" in said.render(colour=True)
    assert "\x1b[" not in said.render()


def test_the_shell_can_complete(run: Run, process: Run) -> None:
    assert "--install-completion" in run("--help").stdout
    done = process(_KAICEP_COMPLETE="complete_bash", COMP_WORDS="kaicep mat", COMP_CWORD="1")
    assert done.stdout.split() == ["match"]
