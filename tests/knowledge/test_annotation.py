"""Annotation files: what they mean, and what is said of wrong ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kaicep.errors import Mistake
from kaicep.knowledge.annotation import (
    Annotation,
    load_annotations,
    parse_annotations,
    stream_of,
)
from kaicep.plan.catalog import Entity, Stream
from kaicep.plan.terms import RDFS, Iri
from kaicep.plan.types import Type

HVC, EE, EVT = (
    "http://cei.usc.edu/HVAC.owl#",
    "http://cei.usc.edu/Equipment.owl#",
    "http://cei.usc.edu/Event.owl#",
)
AIRFLOW: dict[str, Any] = {
    "prefixes": {"hvc": HVC, "ee": EE, "evt": EVT},
    "stream": "airflowReport",
    "class": "evt:AirflowReport",
    "time": "timestamp",
    "attributes": {"flowrate": "hvc:airflow"},
    "entities": {
        "sensorID": {"property": "evt:hasSource", "iri": "ee:{value}"},
        "tag": {"property": "<http://x/p>", "lookup": "rdfs:label"},
        "room": {"property": "http://x/q", "iri": "http://x/{value}/room"},
    },
    "types": {"flowrate": "float64", "ok": "bool"},
}
READ = Annotation(
    "airflowReport",
    (("hvc", HVC), ("ee", EE), ("evt", EVT)),
    Iri(EVT + "AirflowReport"),
    "timestamp",
    (("flowrate", Iri(HVC + "airflow")),),
    (
        ("sensorID", Entity(Iri(EVT + "hasSource"), template=EE + "{value}")),
        ("tag", Entity(Iri("http://x/p"), lookup=(Iri(RDFS + "label"),))),
        ("room", Entity(Iri("http://x/q"), template="http://x/{value}/room")),
    ),
    (("flowrate", Type.FLOAT64), ("ok", Type.BOOL)),
)


def test_one_or_a_list(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    file.write_text(json.dumps(AIRFLOW))
    assert load_annotations(file) == (READ,)
    file.write_text(json.dumps([AIRFLOW, {"stream": "other"}]), encoding="utf-8-sig")
    assert load_annotations(file) == (READ, Annotation("other"))
    assert parse_annotations(AIRFLOW) == (READ,)


def test_a_stream_as_annotated() -> None:
    attributes = (("timestamp", Type.STRING), ("flowrate", Type.INT64), ("sensorID", Type.STRING))
    assert stream_of(READ, attributes) == Stream(
        "airflowReport",
        (
            ("timestamp", Type.STRING),
            ("flowrate", Type.FLOAT64),
            ("sensorID", Type.STRING),
            ("ok", Type.BOOL),
        ),
        "timestamp",
        READ.event_class,
        READ.concepts,
        READ.entities,
    )


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"stream": None}, '"stream" should be a text'),
        ({"steam": "x"}, 'unknown key "steam"'),
        ({"steam": "x"}, "did you mean stream?"),
        ({"class": "evtt:A"}, "unknown prefix evtt: in evtt:A"),
        ({"class": "evtt:A"}, "did you mean evt?"),
        ({"class": "A"}, '"A" is not a name of the knowledge base'),
        ({"class": "<A B>"}, "a character that no IRI may have"),
        ({"types": {"x": "int"}}, "unknown type int"),
        ({"types": {"x": "int"}}, "the types are bool, int64, float64, string, timestamp"),
        ({"types": ["x"]}, '"types" is an object'),
        ({"attributes": {"x": 5}}, '"x" should be a text'),
        ({"entities": {"x": "ee:{value}"}}, "an entity is an object"),
        ({"entities": {"x": {"iri": "ee:{value}"}}}, 'an entity needs "property"'),
        ({"entities": {"x": {"property": "ee:p"}}}, "this has neither"),
        ({"entities": {"x": {"property": "ee:p", "iri": "ee:{value}", "lookup": "ee:t"}}}, "this has both"),
        ({"entities": {"x": {"property": "ee:p", "iri": "ee:value"}}}, "it lacks {value}"),
        ({"entities": {"x": {"property": "ee:p", "iri": "zz:{value}"}}}, "unknown prefix zz:"),
        ({"entities": {"x": {"property": "ee:p", "lookupp": "ee:t"}}}, "did you mean lookup?"),
    ],
)
def test_mistakes(change: dict[str, Any], told: str) -> None:
    with pytest.raises(Mistake) as caught:
        parse_annotations({**AIRFLOW, **change})
    assert told in str(caught.value)


@pytest.mark.parametrize("value", [{}, [{}]])
def test_a_stream_must_be_named(value: Any) -> None:
    with pytest.raises(Mistake, match='an annotation needs "stream"'):
        parse_annotations(value)


def test_an_annotation_is_an_object() -> None:
    with pytest.raises(Mistake, match="an annotation is an object"):
        parse_annotations([AIRFLOW, 5])


def mistake(file: Path, text: str) -> list[str]:
    file.write_text(text)
    with pytest.raises(Mistake) as caught:
        load_annotations(file)
    return str(caught.value).splitlines()


def test_mistakes_in_files_are_underlined(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    assert mistake(file, '[{"stream": "s"},\n {"stream": "t", "types": {"x": "int"}}]') == [
        "error: unknown type int",
        f" --> {file}:2:28",
        "  |",
        '2 |  {"stream": "t", "types": {"x": "int"}}]',
        "  |                            ^^^",
        "  = help: the types are bool, int64, float64, string, timestamp",
    ]
    assert mistake(file, '{"stream": "s",\n}')[:2] == [
        "error: this is not JSON: Expecting property name enclosed in double quotes",
        f" --> {file}:2:1",
    ]
    assert mistake(file, '{"stream": "s", "stream": "t"}')[:2] == [
        'error: "stream" is here twice',
        f" --> {file}:1:17",
    ]
    assert mistake(file, "{}")[1] == f" --> {file}"
    assert mistake(file, "")[0].startswith("error: this is not JSON")


def test_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(Mistake, match=r"cannot read the annotation file .*none\.json: No such file"):
        load_annotations(tmp_path / "none.json")
    (tmp_path / "a.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(Mistake, match="it is not UTF-8"):
        load_annotations(tmp_path / "a.json")
