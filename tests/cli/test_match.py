"""`kaicep match`, `check` and `explain` from files to output."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyoxigraph
import pytest

from kaicep.cli.arguments import compile_kernel
from kaicep.kernel import warm

AIR = ("--stream", "air=air.jsonl")
DEAD = """\
dead letters: 2 records could not be read; --dead-letters FILE keeps them
  air.jsonl:3: not JSON: expecting value at column 1
  air.jsonl:5: no time: it has no attribute ts, and no annotation names another
"""


def test_the_forms_are_those_that_there_are() -> None:
    from kaicep.cli import formats, match

    assert tuple(formats.FORMATS) == match._RDF_FORMS


def test_sparql_and_rdf_have_forms_of_their_own(run: Callable[..., Any]) -> None:
    triples = [
        {"triple": '<urn:kaicep:a> <urn:kaicep:p> "1 < 2\\r\\n, \\"x\\""@en .', "start": 1},
        {
            "triple": '<urn:kaicep:b> <urn:kaicep:p> "007"^^<http://www.w3.org/2001/XMLSchema#integer> .',
            "start": 2,
        },
        {"triple": "_:b <urn:kaicep:q> <urn:kaicep:c> .", "start": 3},
    ]
    Path("rdf.jsonl").write_text("".join(json.dumps(each) + "\n" for each in triples))
    Path("asked.epsparql").write_text("SELECT ?x ?v WHERE { { ?x p ?v } UNION { ?x q ?y } }")
    Path("made.epsparql").write_text("CONSTRUCT { ?x r _:n . _:n s ?v } WHERE { ?x p ?v }")
    given = ("--stream", "rdf=rdf.jsonl", "--out")
    formats = {
        "srj": pyoxigraph.QueryResultsFormat.JSON,
        "sparql-xml": pyoxigraph.QueryResultsFormat.XML,
    }
    expected = {("<urn:kaicep:a>", '"1 < 2\\r\\n, \\"x\\""@en')}
    expected |= {("<urn:kaicep:b>", '"007"^^<http://www.w3.org/2001/XMLSchema#integer>')}
    for form, read_as in formats.items():
        done = run("match", "asked.epsparql", *given, form)
        read = pyoxigraph.parse_query_results(done.stdout_bytes, read_as)
        assert isinstance(read, pyoxigraph.QuerySolutions)
        assert [each.value for each in read.variables] == ["x", "v"]
        found = [(str(each["x"]), str(each["v"])) for each in read]
        assert len(found) == 3
        assert {each for each in found if each[1] != "None"} == expected
    found = run("match", "asked.epsparql", *given, "sparql-csv").stdout_bytes.decode()
    assert found.startswith('x,v\r\nurn:kaicep:a,"1 < 2\r\n, ""x"""\r\nurn:kaicep:b,007\r\n_:')
    plain = run("match", "made.epsparql", *given, "nt").stdout_bytes
    named = run("match", "made.epsparql", *given, "trig").stdout_bytes
    assert len(list(pyoxigraph.parse(plain, pyoxigraph.RdfFormat.N_TRIPLES))) == 4
    quads = list(pyoxigraph.parse(named, pyoxigraph.RdfFormat.TRIG))
    graphs = {each.graph_name for each in quads if each.graph_name != pyoxigraph.DefaultGraph()}
    assert len(graphs) == 2
    assert {each.subject for each in quads if each.graph_name == pyoxigraph.DefaultGraph()} == graphs
    for query, form in (("asked", "trig"), ("made", "srj")):
        refused = run("match", f"{query}.epsparql", *given, form)
        assert refused.exit_code == 2
        assert f"--out {form} is for" in refused.stderr


def test_files_of_rules_are_knowledge(run: Callable[..., Any]) -> None:
    Path("rdf.jsonl").write_text('{"triple": "<urn:kaicep:a> <urn:kaicep:p> <urn:kaicep:b> .", "start": 1}\n')
    rules = "PREFIX x: <urn:kaicep:>\nCONSTRUCT { ?x x:q ?y } WHERE { ?x x:p ?y }\n"
    Path("rules.epsparql").write_text(rules + "CONSTRUCT { ?y x:r ?x } WHERE { ?x x:q ?y }")
    Path("asked.epsparql").write_text("SELECT ?x WHERE { ?x r ?y }")
    given = ("match", "asked.epsparql", "--stream", "rdf=rdf.jsonl", "--knowledge", "rules.epsparql")
    for host in ("inprocess", "reference"):
        found = lines(run(*given, "--host", host).stdout)
        assert [(each["query"], each["select"]["x"]["value"]) for each in found] == [
            ("asked", "urn:kaicep:b")
        ]
    Path("rules.epsparql").write_text("SELECT ?x WHERE { ?x p ?y }")
    refused = run(*given)
    assert refused.exit_code == 2
    assert "a rule of the knowledge is a CONSTRUCT" in refused.stderr


def test_how_much_rules_may_derive_is_said(run: Callable[..., Any]) -> None:
    number = '"1"^^<http://www.w3.org/2001/XMLSchema#integer>'
    Path("rdf.jsonl").write_text(
        json.dumps({"triple": f"<urn:kaicep:a> <urn:kaicep:n> {number} .", "start": 1})
    )
    Path("up.epsparql").write_text(
        "CONSTRUCT { ?x n ?m } WHERE { ?x n ?k BIND (?k + 1 AS ?m) FILTER (?k < 40) }"
    )
    given = ("match", "up.epsparql", "--stream", "rdf=rdf.jsonl")
    for host in ("inprocess", "reference"):
        stopped = run(*given, "--host", host, "--derived", "20")
        assert stopped.exit_code == 1
        assert "more than 20 triples are derived" in stopped.stderr
        assert len(lines(run(*given, "--host", host, "--derived", "40").stdout)) == 39
    assert len(lines(run(*given).stdout)) == 39


def lines(text: str) -> list[Any]:
    return [json.loads(each) for each in text.splitlines()]


def test_match(run: Callable[..., Any]) -> None:
    result = run("match", "rise.chi", *AIR)
    assert (result.exit_code, result.stderr) == (0, DEAD)
    first, second = lines(result.stdout)
    assert list(first) == ["query", "id", "start", "end", "select", "events"]
    assert first["select"] == {"sensor": "s2", "rise": 59.5, "since": "2012-05-07T09:01:00.000000Z"}
    assert first["events"]["b"] == {"stream": "air", "part": 0, "seq": 5}
    assert (second["start"], second["end"]) == ("2012-05-07T09:00:00.000000Z", "2012-05-07T09:02:00.000000Z")
    assert second["select"] == {"sensor": "s1", "rise": 60.0, "since": "2012-05-07T09:00:00.000000Z"}


def test_several_queries_in_one_order(run: Callable[..., Any]) -> None:
    found = lines(run("match", "rise.chi", "tall.chi", *AIR).stdout)
    assert sorted(each["query"] for each in found) == ["rise", "rise", "tall", "tall"]
    assert found == sorted(found, key=lambda each: (each["end"], each["id"]))


def test_only_one_of_several_queries_is_printed(run: Callable[..., Any]) -> None:
    for name in ("tall", "tall.chi"):
        found = lines(run("match", "rise.chi", "tall.chi", *AIR, "--only", name).stdout)
        assert [each["query"] for each in found] == ["tall", "tall"]
    table = run("match", "rise.chi", "tall.chi", *AIR, "--only", "tall", "--out", "csv").stdout
    assert table.splitlines()[0].startswith("query,id,start,end,sensor,flow")
    wrong = run("match", "rise.chi", "tall.chi", *AIR, "--only", "tal")
    assert wrong.exit_code == 2
    assert "--only tal: no query of that name is given" in wrong.stderr
    assert "did you mean tall?" in wrong.stderr


@pytest.mark.parametrize("host", ["reference", "inprocess"])
@pytest.mark.parametrize(("end", "minutes"), [("closed", ["01", "02", "03"]), ("open", ["01", "02"])])
def test_an_open_end(run: Callable[..., Any], host: str, end: str, minutes: list[str]) -> None:
    Path("batch.chi").write_text("SELECT COUNT(?e) AS n FROM (?e, air) WINDOW (?e, batch, 1min)")
    found = lines(run("match", "batch.chi", *AIR, "--end", end, "--host", host).stdout)
    assert [each["end"][14:16] for each in found] == minutes


def test_an_end_is_closed_or_open(run: Callable[..., Any]) -> None:
    wrong = run("match", "rise.chi", *AIR, "--end", "ajar")
    assert (wrong.exit_code, "choose one of closed, open" in wrong.stderr) == (2, True)


def test_an_event_too_far_ahead_is_a_bad_record(run: Callable[..., Any]) -> None:
    Path("far.jsonl").write_text('{"ts": "2012-05-07T09:00:00Z", "x": 1}\n{"ts": "2999-01-01", "x": 2}\n')
    Path("all.chi").write_text("SELECT ?e.x FROM (?e, far)")
    for options, count in (((), 2), (("--ahead", "0s"), 2), (("--ahead", "1d"), 1)):
        result = run("match", "all.chi", "--stream", "far=far.jsonl", *options)
        assert len(lines(result.stdout)) == count
    assert "far.jsonl:2: its time, 2999-01-01T00:00:00.000000Z, is too far ahead" in result.stderr


def test_an_rdf_stream(run: Callable[..., Any]) -> None:
    result = run("match", "parked.epsparql", "--stream", "trucks=trucks.jsonl")
    assert result.exit_code == 0
    [match] = lines(result.stdout)
    assert list(match) == ["query", "id", "start", "end", "select"]
    assert match["select"] == {"truck": {"type": "uri", "value": "urn:t1"}}
    assert (match["start"], match["end"]) == ("1970-01-01T00:00:10.000000Z", "1970-01-01T00:00:30.000000Z")
    table = run("match", "parked.epsparql", "--stream", "trucks=trucks.jsonl", "--out", "csv").stdout
    assert table.splitlines()[0] == "query,id,start,end,truck"
    assert table.splitlines()[1].endswith(",urn:t1")


def test_dead_letters_and_late_events_are_written_down(run: Callable[..., Any], folder: Path) -> None:
    options = ("--dead-letters", "dead.jsonl", "--late", "late.jsonl", "--lateness", "10s")
    result = run("match", "rise.chi", *AIR, *options)
    assert result.exit_code == 0
    assert result.stderr == (
        DEAD.replace("; --dead-letters FILE keeps them", "")
        + "late: 1 event came too late to be used\n  air: 1\n"
    )
    assert [each["select"]["sensor"] for each in lines(result.stdout)] == ["s1"]
    assert lines((folder / "dead.jsonl").read_text()) == [
        {
            "stream": "air",
            "part": 0,
            "seq": 2,
            "line": 3,
            "file": "air.jsonl",
            "reason": "not JSON: expecting value at column 1",
            "record": "oops",
        },
        {
            "stream": "air",
            "part": 0,
            "seq": 4,
            "line": 5,
            "file": "air.jsonl",
            "reason": "no time: it has no attribute ts, and no annotation names another",
            "record": '{"sensor": "s1", "flow": 600}',
        },
    ]
    time = "2012-05-07T09:01:30.000000Z"
    assert lines((folder / "late.jsonl").read_text()) == [
        {
            "stream": "air",
            "part": 0,
            "seq": 5,
            "ts": time,
            "values": {"ts": time, "sensor": "s2", "flow": 570.0},
        }
    ]


def test_late_triples(run: Callable[..., Any], folder: Path) -> None:
    (folder / "trucks.jsonl").write_text(
        '{"triple": "<urn:a> <urn:at> <urn:b> .", "start": 10}\n'
        '{"triple": "<urn:a> <urn:at> <urn:b> .", "start": 5}\n'
    )
    run("match", "parked.epsparql", "--stream", "trucks=trucks.jsonl", "--lateness", "1s", "--late", "late")
    [late] = lines((folder / "late").read_text())
    assert late["values"] == {
        "start": "1970-01-01T00:00:05.000000Z",
        "triples": ["<urn:a> <urn:at> <urn:b> ."],
    }


def test_nothing_is_said_where_nothing_was_left_out(run: Callable[..., Any], folder: Path) -> None:
    good = [each for each in (folder / "air.jsonl").read_text().splitlines() if '"ts"' in each]
    (folder / "air.jsonl").write_text("\n".join(good))
    assert run("match", "rise.chi", *AIR).stderr == ""


def test_an_empty_file_gives_no_match(run: Callable[..., Any], folder: Path) -> None:
    (folder / "air.jsonl").write_text("")
    result = run("match", "rise.chi", *AIR)
    assert (result.exit_code, result.stdout) == (0, "")


@pytest.mark.parametrize("form", ["jsonl", "table", "csv", "parquet"])
def test_the_same_bytes_on_stdout_in_a_file_and_again(
    run: Callable[..., Any], folder: Path, form: str
) -> None:
    if form == "parquet":
        pytest.importorskip("pyarrow")
    shown = run("match", "rise.chi", "tall.chi", *AIR, "--out", form)
    kept = run("match", "rise.chi", "tall.chi", *AIR, "--out", form, "--output", "out")
    assert (shown.exit_code, kept.exit_code, kept.stdout) == (0, 0, "")
    assert shown.stdout_bytes == (folder / "out").read_bytes() != b""


def test_the_order_of_arrival_and_the_kind_of_file_do_not_matter(
    run: Callable[..., Any], folder: Path
) -> None:
    good = [json.loads(each) for each in (folder / "air.jsonl").read_text().splitlines() if '"ts"' in each]
    rows = ["ts,sensor,flow", *(f"{each['ts']},{each['sensor']},{each['flow']}" for each in reversed(good))]
    (folder / "air.csv").write_text("\n".join(rows))
    as_lines = lines(run("match", "rise.chi", *AIR).stdout)
    as_csv = lines(run("match", "rise.chi", "--stream", "air=air.csv").stdout)
    assert [each["select"] for each in as_csv] == [each["select"] for each in as_lines]


def test_a_wrong_query_leaves_the_output_as_it_was(run: Callable[..., Any], folder: Path) -> None:
    (folder / "out").write_text("old")
    before = sorted(folder.iterdir())
    result = run("match", "wrong.chi", *AIR, "--output", "out", "--dead-letters", "dead")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "unknown stream ari" in result.stderr
    assert "--> wrong.chi:1:" in result.stderr
    assert (folder / "out").read_text() == "old"
    assert sorted(folder.iterdir()) == before


def test_a_failure_while_running(
    run: Callable[..., Any], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kaicep import api

    def fail(self: api.FiniteRun, host: str) -> Any:
        raise RuntimeError("broken")

    monkeypatch.setattr(api.FiniteRun, "matches", fail)
    result = run("match", "rise.chi", *AIR, "--output", "out")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("internal error: RuntimeError: broken\n")
    assert not (folder / "out").exists()
    assert not list(folder.glob(".kaicep*"))


def test_unknown_entities_are_counted(run: Callable[..., Any], folder: Path) -> None:
    (folder / "air.json").write_text(
        '{"prefixes": {"ee": "urn:ee:"}, "stream": "air",'
        ' "entities": {"sensor": {"property": "ee:by", "iri": "ee:{value}"}}}'
    )
    (folder / "campus.ttl").write_text("<urn:ee:s1> a <urn:ee:Sensor> .")
    (folder / "path.chi").write_text(
        "SELECT ?e.flow FROM (?e, air) WHERE PATH {?e ee:by ?s . ?s a ee:Sensor}"
    )
    result = run("match", "path.chi", *AIR, "--annotation", "air.json", "--knowledge", "campus.ttl")
    assert result.exit_code == 0, result.stderr
    assert [each["select"]["flow"] for each in lines(result.stdout)] == [500.0, 560.0]
    assert result.stderr.endswith(
        "unknown: 1 value with no entity in the knowledge base, so that no PATH holds for them\n"
        "  air.sensor: s2 (2 times)\n"
    )


@pytest.mark.parametrize(
    ("option", "file", "text", "said"),
    [
        ("--annotation", "a.json", "{}", 'error: an annotation needs "stream"'),
        ("--annotation", "a.json", '{"stream": ', "error: "),
        ("--knowledge", "k.ttl", "<urn:a> <urn:b> <urn:c> .\n<urn:a> oops", " --> k.ttl:2:9\n"),
    ],
)
def test_bad_knowledge_and_annotations(
    run: Callable[..., Any], folder: Path, option: str, file: str, text: str, said: str
) -> None:
    (folder / file).write_text(text)
    result = run("match", "rise.chi", *AIR, option, file, "--output", "out")
    assert (result.exit_code, result.stdout) == (2, "")
    assert said in result.stderr
    assert not (folder / "out").exists()


def test_check(run: Callable[..., Any]) -> None:
    result = run("check", "rise.chi", "tall.chi", *AIR)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == "rise: ok (chi-CEP, reads air)\ntall: ok (chi-CEP, reads air)\n"


def test_check_tells_all_mistakes_and_runs_nothing(run: Callable[..., Any]) -> None:
    result = run("check", "wrong.chi", "rise.chi", *AIR)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("error: unknown stream ari\n --> wrong.chi:1:")
    assert "did you mean air?" in result.stderr


def test_explain(run: Callable[..., Any]) -> None:
    result = run("explain", "rise.chi", *AIR)
    assert (result.exit_code, result.stderr) == (0, "")
    assert "SEQ (?a, ?b)" in result.stdout
    as_json = run("explain", "rise.chi", *AIR, "--json")
    assert json.loads(as_json.stdout)


def test_as_a_process(process: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    done = process("match", "rise.chi", *AIR, LC_ALL="C", PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, DEAD)
    assert len(lines(done.stdout)) == 2
    wrong = process("match", "wrong.chi", *AIR)
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert "Traceback" not in wrong.stderr


def test_a_reader_that_stops_reading_ends_it_quietly(folder: Path) -> None:
    rows = (f'{{"ts": {each}, "sensor": "s", "flow": 600}}\n' for each in range(3_000))
    (folder / "air.jsonl").write_text("".join(rows) + "bad")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(each for each in sys.path if each)}
    command = [sys.executable, "-m", "kaicep", "match", "tall.chi", *AIR, "--dead-letters", "dead"]
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, stdout=pipe, stderr=pipe, env=environment)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait(timeout=300) == 0
    process.stderr.close()
    assert len((folder / "dead").read_text().splitlines()) == 1


def on_a_terminal(command: list[str], settings: dict[str, str]) -> tuple[int, str]:
    """The exit status, and what a terminal shows, of a command whose stdout and stderr are one."""
    pty = pytest.importorskip("pty")
    master, slave = pty.openpty()
    process = subprocess.Popen(command, stdout=slave, stderr=slave, env={**os.environ, **settings})
    os.close(slave)
    seen = b""
    while True:
        try:
            chunk = os.read(master, 65536)
        except OSError:  # how Linux says that the other side is closed
            break
        if not chunk:
            break
        seen += chunk
    os.close(master)
    return process.wait(timeout=300), seen.decode()


def test_parquet_is_not_for_a_terminal(folder: Path) -> None:
    paths = os.pathsep.join(each for each in sys.path if each)
    command = [sys.executable, "-m", "kaicep", "match", "rise.chi", *AIR, "--out", "parquet"]
    status, seen = on_a_terminal(command, {"PYTHONPATH": paths})
    assert status == 2
    assert "Parquet is not for a terminal" in seen
    assert "--output FILE" in seen


def test_a_bar_appears_on_a_terminal_when_it_takes_long(folder: Path) -> None:
    pytest.importorskip("rich")
    code = (
        "import threading\n"
        "from kaicep.cli import arguments\n"
        "arguments.PATIENCE = 0.05\n"
        "with arguments.progress('reading', 10) as advance:\n"
        "    advance(3)\n"
        "    [each.join() for each in threading.enumerate() if isinstance(each, threading.Timer)]\n"
        "    advance(9)\n"
        "arguments.PATIENCE = 3600\n"
        "with arguments.progress('matching'):\n"
        "    pass\n"
    )
    paths = os.pathsep.join(each for each in sys.path if each)
    status, seen = on_a_terminal([sys.executable, "-c", code], {"PYTHONPATH": paths, "TERM": "xterm"})
    assert status == 0, seen
    assert "reading" in seen
    assert "matching" not in seen


def test_no_bar_where_nobody_looks(capsys: pytest.CaptureFixture[str]) -> None:
    from kaicep.cli.arguments import progress

    with progress("reading", 10) as advance:
        advance(5)
    assert capsys.readouterr() == ("", "")


def test_the_kernel_is_compiled_with_a_word_to_whoever_looks(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    compiled: list[bool] = []
    monkeypatch.setenv("KAICEP_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(warm, "warm", lambda: compiled.append(True))
    compile_kernel()
    assert not compiled  # nobody looks: what is needed is compiled as it is needed
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    compile_kernel()
    assert compiled == [True]
    assert capsys.readouterr().err == "compiling the kernel, once for this installation ...\n"
    monkeypatch.setattr(warm, "is_warm", lambda: True)
    compile_kernel()
    assert compiled == [True]
    (tmp_path / "file").touch()
    monkeypatch.setenv("KAICEP_CACHE_DIR", str(tmp_path / "file"))
    monkeypatch.setattr(warm, "is_warm", lambda: False)
    compile_kernel()  # there is no place to keep it
    assert compiled == [True]
