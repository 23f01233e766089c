"""Documents of RDF as streams: what is a record, when it holds, and that all forms say the same."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path

import pyoxigraph
import pytest
from tests.servers import need

from kaicep.api import open_run
from kaicep.cli.formats import WrittenColumns, as_trig
from kaicep.connectors.documents import read_document, value_record
from kaicep.connectors.files import StreamData, read_stream
from kaicep.connectors.registry import make_source
from kaicep.connectors.shape import Form
from kaicep.errors import Mistake
from kaicep.knowledge.annotation import build_catalog, parse_annotations
from kaicep.plan.catalog import Vocabulary
from kaicep.plan.rdf_text import FORMATS
from kaicep.plan.terms import Blank, Iri, TripleTerm, n_triples
from kaicep.plan.types import Notation, RdfTimes

PREFIXES = """
    @prefix : <urn:> . @prefix prov: <http://www.w3.org/ns/prov#> .
    @prefix sosa: <http://www.w3.org/ns/sosa/> . @prefix xsd: <http://www.w3.org/2001/XMLSchema#> .
"""
SECONDS = 1_000_000


def read(tmp_path: Path, text: str, name: str = "s.trig", notation: Notation | None = None) -> StreamData:
    (tmp_path / name).write_text(PREFIXES + text if name.endswith((".ttl", ".trig")) else text)
    return read_stream("s", tmp_path / name, notation=notation or Notation())


def records(stream: StreamData) -> list[tuple[int, int, int, list[str]]]:
    """The events as (seq, start, end, objects)."""
    return [
        (each.seq, (each.start or 0) // SECONDS, each.ts // SECONDS, [str(o) for _, _, o in each.triples])
        for each in stream.events
    ]


def reasons(stream: StreamData) -> list[tuple[int, str]]:
    return [(each.seq, each.reason) for each in stream.dead]


# --- what is a record -------------------------------------------------------------------------------


def test_a_thing_with_a_time_is_a_record_with_its_blank_nodes(tmp_path: Path) -> None:
    stream = read(
        tmp_path,
        """:o1 :x [ :y [ :z :deep ] ] ; sosa:resultTime "1970-01-01T00:00:01Z"^^xsd:dateTime .
           :o2 sosa:resultTime 2 .  :o1 :later :too .""",
        "s.ttl",
    )
    assert stream.rdf
    first, second = stream.events
    lines = {n_triples(each) for each in first.triples}
    time = '"1970-01-01T00:00:01Z"^^<http://www.w3.org/2001/XMLSchema#dateTime>'
    assert lines == {
        "<urn:o1> <urn:x> _:s_20_0_20_0..0 .",
        "_:s_20_0_20_0..0 <urn:y> _:s_20_0_20_0..1 .",
        "_:s_20_0_20_0..1 <urn:z> <urn:deep> .",
        f"<urn:o1> <http://www.w3.org/ns/sosa/resultTime> {time} .",
        "<urn:o1> <urn:later> <urn:too> .",
    }
    assert [(each.seq, each.ts) for each in (first, second)] == [(0, SECONDS), (1, 2 * SECONDS)]


def test_a_graph_is_a_record_whose_time_is_said_of_its_name_or_in_it(tmp_path: Path) -> None:
    stream = read(
        tmp_path,
        """:g2 { :a :v :second ; sosa:resultTime 5 }
           :g1 { :a :v :first . :a sosa:resultTime 7 }
           :g1 prov:generatedAtTime 1 ; prov:wasAttributedTo [ :name "me" ] .
           :g3 { :g3 prov:generatedAtTime 3 . :b sosa:resultTime 8 }""",
    )
    assert [(seq, start) for seq, start, _, _ in records(stream)] == [(0, 5), (1, 1), (2, 3)]
    assert next(str(o) for _, _, o in stream.events[1].triples) == "<urn:first>"
    assert not stream.dead


def test_what_a_reifier_with_a_time_reifies_is_a_record(tmp_path: Path) -> None:
    stream = read(tmp_path, ":a :v 1 {| prov:generatedAtTime 4 |} . << :a :v 2 >> prov:generatedAtTime 5 .")
    assert [(*each[:2], len(each[3])) for each in records(stream)] == [(0, 4, 1), (1, 5, 1)]
    assert not stream.dead


def test_what_has_no_time_is_a_bad_record_and_uses_up_its_number(tmp_path: Path) -> None:
    stream = read(
        tmp_path,
        """:lost :v 1 . :o sosa:resultTime 1 . :g { :a :v 2 } :two sosa:resultTime 1, 2 .
           :odd sosa:resultTime "yesterday" . _:p :q _:r . _:r :q _:p . :last sosa:resultTime 9 .""",
    )
    assert [seq for seq, *_ in records(stream)] == [1, 5]
    neither = "has no http://www.w3.org/ns/prov#generatedAtTime and no http://www.w3.org/ns/sosa/resultTime"
    integer = "^^<http://www.w3.org/2001/XMLSchema#integer>"
    assert reasons(stream) == [
        (0, f"no time: <urn:lost> {neither}"),
        (2, f"no time: the graph <urn:g> {neither}"),
        (3, f'<urn:two> has 2 times: "1"{integer}, "2"{integer}'),
        (4, 'start: "yesterday" is neither an ISO 8601 time nor epoch seconds'),
        (6, f"no time: _:p {neither}"),
    ]
    assert stream.dead[0].record_text == f'<urn:lost> <urn:v> "1"{integer} .'


def test_the_first_property_that_is_said_counts_and_an_annotation_names_others(tmp_path: Path) -> None:
    text = ":o sosa:resultTime 1 ; prov:generatedAtTime 2 ; :from 3 ; :to 4 ."
    assert records(read(tmp_path, text))[0][1:3] == (2, 2)
    [said] = parse_annotations(
        {"stream": "s", "prefixes": {"u": "urn:"}, "rdf": {"start": "u:from", "end": "<urn:to>"}}
    )
    assert records(read(tmp_path, text, notation=said.notation))[0][1:3] == (3, 4)


def test_a_triple_may_speak_of_a_triple(tmp_path: Path) -> None:
    stream = read(tmp_path, ":x :says <<( :a :v [] )>> , <<( :a :v _:b )>> ; sosa:resultTime 1 .")
    terms = [o for _, p, o in stream.events[0].triples if p == Iri("urn:says")]
    assert [each.triple[2] for each in terms if isinstance(each, TripleTerm)] == [
        Blank("s_20_0_20_0..0"),
        Blank("s_20_0_20_0.b"),
    ]


def test_a_label_is_one_node_in_one_record_or_in_the_stream(tmp_path: Path) -> None:
    text = "_:b sosa:resultTime 1 ; :x [] . :o :x _:c, [] ; sosa:resultTime 2 ."
    text += " :p :x _:c ; sosa:resultTime 3 ."

    def nodes(notation: Notation) -> list[list[str]]:
        events = read(tmp_path, text, notation=notation).events
        return [[str(o) for _, _, o in each.triples if isinstance(o, Blank)] for each in events]

    first, second, third = nodes(Notation())
    assert first == ["_:s_20_0_20_0..0"]
    assert (second, third) == (["_:s_20_0_20_1.c", "_:s_20_0_20_1..0"], ["_:s_20_0_20_2.c"])
    assert nodes(Notation(blank_nodes="stream")) == [["_:s..0.0.0"], ["_:s.c", "_:s..0.1.0"], ["_:s.c"]]


def test_a_bad_line_is_one_bad_record(tmp_path: Path) -> None:
    time = "<http://www.w3.org/ns/sosa/resultTime>"
    for name, graph in (("s.nt", ""), ("s.nq", " <urn:g>")):
        text = f'<urn:a> {time} "1970-01-01T00:00:01Z"{graph} .\nbad\n<urn:a> <urn:v> <urn:w>{graph} .\n'
        stream = read(tmp_path, text, name)
        assert [(seq, start) for seq, start, *_ in records(stream)] == [(0, 1)]
        assert len(stream.events[0].triples) == 2
        assert [(each.seq, each.line, each.record_text) for each in stream.dead] == [(1, 2, "bad")]


def test_a_document_that_cannot_be_parsed_is_a_mistake_with_its_place(tmp_path: Path) -> None:
    with pytest.raises(Mistake) as caught:
        read(tmp_path, ":a :b :c .\n:a :b", "s.ttl")
    assert "s.ttl:5:6" in str(caught.value)


def bombs() -> list[tuple[str, str, str]]:
    lines = "".join(f'<!ENTITY e{i} "{f"&e{i - 1};" * 10 if i else "x" * 10}">' for i in range(9))
    rdf = '<rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#" xmlns="urn:x#">'
    terms = f"<urn:a> <urn:b> {'<<( <urn:a> <urn:b> ' * 50_000}<urn:c>{' )>>' * 50_000} .\n"
    # Whatever may stand in a text without opening or closing a triple term.
    odd = r""":a :b ')>>' , "\" )>>" , ''' " )>> ' ''' , <urn:c#'> . # )>> " '""" + "\n"
    return [
        ("rdf", f"<!DOCTYPE rdf:RDF [{lines}]>{rdf}</rdf:RDF>", "the entity e1 is more than a short text"),
        ("rdf", f"{rdf}{'<rdf:Description><p>' * 9_000}", "nested more than 500 deep"),
        ("jsonld", '{"urn:p":' * 100_000, "nested more than 500 deep"),
        ("nt", terms, "nested more than 50 deep"),
        ("trig", odd + terms, "nested more than 50 deep"),
    ]


@pytest.mark.parametrize(("format", "text", "reason"), bombs(), ids=lambda each: each[:20])
def test_a_text_that_would_bring_the_process_down_is_refused(
    tmp_path: Path, format: str, text: str, reason: str
) -> None:
    notation = Notation(rdf=RdfTimes(format=format))
    record = value_record(0, 0, "topic", text.encode(), notation)
    assert record.fields is None
    assert reason in record.reason
    if format != "nt":  # of which only the line is bad
        with pytest.raises(Mistake, match=reason):
            read(tmp_path, text, f"s.{format}")
    else:
        assert [reason in each for _, each in reasons(read(tmp_path, text, "s.nt"))] == [True]


@pytest.mark.parametrize(
    ("format", "text"),
    [("jsonld", '"' + '\\"' * 1_000_000), ("ttl", '"""' + '\\"""' * 1_000_000 + "<<(" * 51)],
)
def test_a_text_without_an_end_takes_no_time(format: str, text: str) -> None:
    record = value_record(0, 0, "topic", text.encode(), Notation(rdf=RdfTimes(format=format)))
    assert record.fields is None


def test_records_that_all_have_the_same_blank_nodes_do_not_multiply() -> None:
    shared = "_:b :v " + ", ".join(map(str, range(1_000))) + " ."
    text = PREFIXES + shared + "".join(f":o{n} :x _:b ; sosa:resultTime 1 ." for n in range(1_000))
    record = value_record(0, 0, "topic", text.encode(), Notation(rdf=RdfTimes(format="ttl")))
    assert record.reason == "its records have too many blank nodes in common"


def test_contexts_of_json_ld_are_not_fetched() -> None:
    text = b'{"@context": "http://127.0.0.1:9/context.jsonld", "@id": "urn:a", "p": 1}'
    record = value_record(0, 0, "topic", text, Notation(rdf=RdfTimes(format="jsonld")))
    assert "remote context" in record.reason


# --- messages ---------------------------------------------------------------------------------------


def message(text: str, format: str = "trig") -> list[str] | str:
    record = value_record(0, 3, "topic", (PREFIXES + text).encode(), Notation(rdf=RdfTimes(format=format)))
    if record.fields is None:
        return record.reason
    triples = record.fields["triples"]
    assert isinstance(triples, tuple)
    return [str(record.fields["start"]), *(str(o) for _, _, o in triples)]


def test_a_message_is_one_record() -> None:
    """Whatever stands in it belongs to the one time that it says."""
    assert message(":o :has :r ; sosa:resultTime 1 . :r :v :five .")[0] == "1"
    assert message(":o :has :r ; sosa:resultTime 1 . :r :v :five .")[-1] == "<urn:five>"
    assert message(":g prov:generatedAtTime 1 . :g { :a :v :w }") == ["1", "<urn:w>"]
    assert message(":o sosa:resultTime 1 . :p sosa:resultTime 2 .")[:14] == "it has 2 times"
    assert message(":o :v 1 .")[:14] == "no time: it ha"
    assert message("") == message("# nothing")
    assert "is not a valid" in message(":o 5 .")


# --- every form -------------------------------------------------------------------------------------

QUERY = """
    PREFIX : <urn:> PREFIX rdf: <http://www.w3.org/1999/02/22-rdf-syntax-ns#>
    SELECT ?a ?b ?x ?n WHERE { { ?a :v ?x . ?a :in [ :named ?n ] } SEQ { ?b :v ?y } FILTER (?y > ?x) }
"""
DATA = """
    :o1 :v 5 ; :in [ :named "north"@en ] ; sosa:resultTime "2026-01-01T00:00:01Z"^^xsd:dateTime .
    :o2 :v 4.50 ; :in [ :named "south\\n" ] ; sosa:resultTime "2026-01-01T00:00:02Z"^^xsd:dateTime .
    :o3 :v 7e0 ; :in [ :named "east" ] ; sosa:resultTime "2026-01-01T01:00:03+01:00"^^xsd:dateTime .
"""


def quads_of(data: str) -> list[pyoxigraph.Quad]:
    return list(pyoxigraph.parse(PREFIXES + data, format=pyoxigraph.RdfFormat.TURTLE))


def written(format: str) -> Callable[[Path], Path]:
    """The data in a format, and a time for each thing."""

    def write(folder: Path) -> Path:
        kind = getattr(pyoxigraph.RdfFormat, FORMATS[format])
        file = folder / f"s.{format}"
        file.write_bytes(pyoxigraph.serialize(quads_of(DATA), format=kind))  # type: ignore[arg-type]
        return file

    return write


def in_graphs(format: str) -> Callable[[Path], Path]:
    """The same with a graph for each thing, whose name has the time."""

    def write(folder: Path) -> Path:
        made = []
        for number, text in enumerate(DATA.strip().splitlines()):
            graph = pyoxigraph.NamedNode(f"urn:g{number}")
            for each in quads_of(text):
                if each.predicate.value.endswith("resultTime"):
                    at = pyoxigraph.NamedNode("http://www.w3.org/ns/prov#generatedAtTime")
                    made.append(pyoxigraph.Quad(graph, at, each.object))
                else:
                    made.append(pyoxigraph.Quad(each.subject, each.predicate, each.object, graph))
        kind = getattr(pyoxigraph.RdfFormat, FORMATS[format])
        (folder / f"s.{format}").write_bytes(pyoxigraph.serialize(made, format=kind))  # type: ignore[arg-type]
        return folder / f"s.{format}"

    return write


def in_files(folder: Path) -> Path:
    """A file for each thing, as a folder of members has them, each in another format."""
    folder = folder / "s"
    folder.mkdir()
    formats = ("ttl", "jsonld", "rdf")
    for number, (text, format) in enumerate(zip(DATA.strip().splitlines(), formats, strict=True)):
        kind = getattr(pyoxigraph.RdfFormat, FORMATS[format])
        made = pyoxigraph.serialize(quads_of(text), format=kind)  # type: ignore[arg-type]
        (folder / f"{number}.{format}").write_bytes(made)
    return folder


def rows() -> list[dict[str, str]]:
    """The data by columns, a row for each triple; blank nodes have names, since a row is a record."""
    made = []
    for number, text in enumerate(DATA.strip().splitlines()):
        quads = quads_of(text)
        start = next(each.object.value for each in quads if each.predicate.value.endswith("Time"))
        for each in quads:
            terms = (f"<urn:b{number}>" if str(t).startswith("_") else str(t) for t in each.triple)
            row = dict(zip(("subject", "predicate", "object"), terms, strict=True))
            made.append({**row, "start": start})
    return made


def as_csv(folder: Path) -> Path:
    with (folder / "s.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, ("subject", "predicate", "object", "start"))
        writer.writeheader()
        writer.writerows(rows())
    return folder / "s.csv"


def as_parquet(folder: Path) -> Path:
    need("pyarrow")
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows()), folder / "s.parquet")
    return folder / "s.parquet"


def as_lines(folder: Path) -> Path:
    with (folder / "s.jsonl").open("w") as file:
        for text in DATA.strip().splitlines():
            quads = quads_of(text)
            start = next(each.object.value for each in quads if each.predicate.value.endswith("Time"))
            file.write(json.dumps({"triples": [f"{each} ." for each in quads], "start": start}) + "\n")
    return folder / "s.jsonl"


FORMS = {
    **{each: written(each) for each in FORMATS},
    **{f"{each}, graphs": in_graphs(each) for each in ("nq", "trig", "jsonld")},
    "files": in_files,
    "csv": as_csv,
    "parquet": as_parquet,
}


@pytest.mark.parametrize("form", FORMS)
def test_the_same_triples_give_the_same_answers_in_every_form(tmp_path: Path, form: str) -> None:
    (tmp_path / "q.epsparql").write_text(QUERY)

    def answers(file: Path, host: str) -> list[str]:
        run = open_run([tmp_path / "q.epsparql"], [("s", file)])
        assert not run.dead
        return [each.to_json() for each in run.matches(host)]

    expected = answers(as_lines(tmp_path), "reference")
    assert len(expected) == 2
    file = FORMS[form](tmp_path)
    assert answers(file, "reference") == expected
    assert answers(file, "inprocess") == expected


def test_what_was_written_as_trig_is_a_stream_again(tmp_path: Path) -> None:
    """With the intervals of its matches, where the annotation says which property is which."""
    (tmp_path / "made.epsparql").write_text(
        "PREFIX : <urn:> CONSTRUCT { ?a :before ?b } WHERE { { ?a :v ?x } SEQ { ?b :v ?y } }"
    )
    run = open_run([tmp_path / "made.epsparql"], [("s", as_lines(tmp_path))])
    matches = run.matches()
    (tmp_path / "made.trig").write_bytes(b"".join(as_trig(matches, WrittenColumns(()))))
    [said] = parse_annotations(
        {
            "stream": "s",
            "prefixes": {"prov": "http://www.w3.org/ns/prov#"},
            "rdf": {"start": "prov:startedAtTime", "end": "prov:generatedAtTime"},
        }
    )
    stream = read_stream("s", tmp_path / "made.trig", notation=said.notation)
    assert len(matches) == 3
    assert sorted((each.start, each.ts, *map(n_triples, each.triples)) for each in stream.events) == sorted(
        (each.start_us, each.end_us, *(each.triples or ())) for each in matches
    )


def test_an_annotation_alone_says_that_a_stream_has_triples(tmp_path: Path) -> None:
    said = parse_annotations({"stream": "s", "rdf": {"format": "ttl"}})
    assert build_catalog([], said, Vocabulary()).streams["s"].rdf


def test_documents_are_no_columns_of_spark() -> None:
    need("pyspark")
    from kaicep.connectors.kafka_spark import check_form

    with pytest.raises(Mistake, match="documents of RDF are no columns"):
        check_form(Form("s", notation=Notation(rdf=RdfTimes(format="ttl"))))


def test_columns_may_have_other_names(tmp_path: Path) -> None:
    file = tmp_path / "s.csv"
    file.write_text("subject,predicate,object,at,until\n<urn:a>,<urn:v>,<urn:b>,1,2\n<urn:a>,<urn:v>,,3,\n")
    [said] = parse_annotations({"stream": "s", "rdf": {"start": "at", "end": "until"}})
    stream = read_stream("s", file, notation=said.notation)
    assert records(stream) == [(0, 1, 2, ["<urn:b>"])]
    assert reasons(stream) == [(1, "it has no triple")]


@pytest.mark.parametrize(
    ("said", "message"),
    [
        (5, '"rdf" is an object'),
        ({"at": "ts"}, "at"),
        ({"format": "turtel"}, '"format" cannot be turtel'),
        ({"start": "<urn: x>"}, "has a character that no IRI may have"),
    ],
)
def test_a_mistake_in_the_annotation(said: object, message: str) -> None:
    with pytest.raises(Mistake, match=message):
        parse_annotations({"stream": "s", "rdf": said})


# --- files that are followed ------------------------------------------------------------------------


def test_documents_come_one_by_one(tmp_path: Path) -> None:
    """One that cannot be parsed yet is looked at again when it has changed; reading goes on at a position."""
    folder = tmp_path / "s"
    folder.mkdir()
    first = ":o1 sosa:resultTime 1 . :o2 sosa:resultTime 2 . :o3 sosa:resultTime 3 ."
    (folder / "b.ttl").write_text(PREFIXES + first)
    options = {"kind": "files", "path": str(folder), "follow": True, "batch": 2}
    with make_source(Form("s"), options) as source:
        source.open()
        one, two = source.next_batch(1.0), source.next_batch(1.0)
        assert [[each.seq for each in batch.events] for batch in (one, two)] == [[0, 1], [2]]
        (folder / "a.ttl").write_text(PREFIXES + ":o4 sosa:resultTime 4 . :o5")
        batch = source.next_batch(1.0)
        assert [(each.part, each.line) for each in batch.dead] == [(1, 0)]
        assert not batch.events
        (folder / "a.ttl").write_text(PREFIXES + ":o4 sosa:resultTime 4 . :o5 sosa:resultTime 5 .")
        batch = source.next_batch(1.0)
        assert [(each.part, each.seq) for each in batch.events] == [(1, 0), (1, 1)]
        assert (batch.position, source.schema and source.schema.rdf) == ({0: 3, 1: 2}, True)
    with make_source(Form("s"), options) as source:
        source.open({0: 1, 1: 1}, None)
        places = [(each.part, each.seq) for _ in range(2) for each in source.next_batch(1.0).events]
        assert places == [(0, 1), (0, 2), (1, 1)]


def test_a_file_is_parsed_once_for_its_count_and_its_records(tmp_path: Path) -> None:
    file = tmp_path / "s.ttl"
    file.write_text(PREFIXES + ":o sosa:resultTime 1 .")
    first = read_document(0, file, "ttl", Notation())
    assert read_document(0, file, "ttl", Notation()) is first
    file.write_text(PREFIXES + ":o sosa:resultTime 1 . :p sosa:resultTime 2 .")
    assert len(read_document(0, file, "ttl", Notation())) == 2
