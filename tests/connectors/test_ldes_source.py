"""A Linked Data Event Stream as a source: pages of a server on this machine, followed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.connectors.pages import Pages, chain

from kaicep.connectors.contract import Position, Source
from kaicep.connectors.log import Log
from kaicep.connectors.registry import make_source
from kaicep.connectors.shape import Form
from kaicep.connectors.sources.ldes import _Members
from kaicep.errors import Failure, Mistake
from kaicep.plan.events import Event
from kaicep.plan.terms import Iri
from kaicep.plan.types import Notation, RdfTimes

SECONDS = 60.0


@pytest.fixture
def pages() -> Iterator[Pages]:
    made = Pages()
    yield made
    made.close()


def source_of(
    pages: Pages, log: Path, position: Position | None = None, form: Form | None = None, **options: object
) -> Source:
    table = {"kind": "ldes", "url": f"{pages.url}/feed", "log": str(log), "follow": False, **options}
    source = make_source(form or Form("s"), table)
    source.open(position)
    return source


def taken(source: Source, until: Callable[[list[Event]], bool] | None = None) -> list[Event]:
    """The events up to the end, or until there are those that are waited for."""
    events: list[Event] = []
    deadline = time.monotonic() + SECONDS
    while True:
        batch = source.next_batch(0.05)
        events += batch.events
        if batch.ended or (until is not None and until(events)):
            return events
        assert time.monotonic() < deadline, source.trouble


def names(events: list[Event]) -> list[tuple[int, int, set[str]]]:
    return [
        (each.seq, each.ts // 1_000_000, {str(s) for s, _, _ in each.triples if isinstance(s, Iri)})
        for each in events
    ]


def test_a_chain_of_pages(pages: Pages, tmp_path: Path) -> None:
    chain(pages)
    with source_of(pages, tmp_path / "log") as source:
        events = taken(source)
        assert source.position == {0: 4}
    assert names(events) == [(each, each + 1, {f"<urn:m{each + 1}>"}) for each in range(4)]
    assert [len(each.triples) for each in events] == [2, 3, 1, 1]


def test_what_is_added_comes_and_nothing_comes_twice(pages: Pages, tmp_path: Path) -> None:
    chain(pages)
    with source_of(pages, tmp_path / "log", follow=True, every="50ms") as source:
        assert len(taken(source, lambda events: len(events) == 4)) == 4
        pages.put("/3", "<feed> tree:member :m3, :m4, :m5 . :m5 prov:generatedAtTime 5 .", ETag='"two"')
        assert names(taken(source, bool)) == [(4, 5, {"<urn:m5>"})]
        assert not source.finite
    assert pages.fetched["/1", 200] == 1  # immutable
    assert pages.fetched["/3", 200] == 2
    pages.put("/4", "<feed> tree:member :m6, :m1 . :m6 prov:generatedAtTime 6 .")
    pages.put("/3", "<> tree:relation [ tree:node </4> ] .")
    with source_of(pages, tmp_path / "log", {0: 4}) as source:
        assert names(taken(source)) == [(4, 5, {"<urn:m5>"}), (5, 6, {"<urn:m6>"})]


def test_pages_with_earlier_members_come_first(pages: Pages, tmp_path: Path) -> None:
    relation = "<{}> tree:relation [ a tree:LessThanRelation ; tree:node <{}> ; tree:value {} ] ."
    pages.put("/feed", "<x> tree:member :m9 . :m9 sosa:resultTime 9 ." + relation.format("feed", "8", 9))
    pages.put("/8", "<x> tree:member :m8 . :m8 sosa:resultTime 8 ." + relation.format("8", "7", 8))
    pages.put("/7", "<x> tree:member :m7 . :m7 sosa:resultTime 7 .")
    with source_of(pages, tmp_path / "log") as source:
        assert [each.ts // 1_000_000 for each in taken(source)] == [7, 8, 9]


def test_graphs_as_members_and_other_forms(pages: Pages, tmp_path: Path) -> None:
    """A member's own graph is its record; the stream says which property has the time."""
    pages.put(
        "/feed",
        """<urn:s> <https://w3id.org/tree#member> <urn:g> .
           <urn:s> <https://w3id.org/ldes#timestampPath> <urn:at> .
           <urn:g> <urn:at> "1970-01-01T00:00:07Z" .
           <urn:a> <urn:v> _:x <urn:g> .
           <urn:other> <urn:v> "1" .""",
        "application/n-quads",
    )
    with source_of(pages, tmp_path / "log") as source:
        [event] = taken(source)
    assert event.ts == 7_000_000
    assert [str(each) for each in event.triples[0]] == ["<urn:a>", "<urn:v>", "_:s_20_0_20_0.b0"]
    form = Form("s", notation=Notation(rdf=RdfTimes(("urn:other",))))  # which counts, where it is said
    with source_of(pages, tmp_path / "two", form=form) as source:
        assert taken(source) == []


def test_a_member_without_a_time_is_a_bad_record(pages: Pages, tmp_path: Path) -> None:
    pages.put("/feed", "<x> tree:member :m1, :m2 . :m1 :v 1 . :m2 sosa:resultTime 1, 2 .")
    with source_of(pages, tmp_path / "log") as source:
        batches = []
        deadline = time.monotonic() + SECONDS
        while not batches or not batches[-1].ended:
            batches.append(source.next_batch(0.05))
            assert time.monotonic() < deadline
    dead = [each for batch in batches for each in batch.dead]
    assert [each.seq for each in dead] == [0, 1]
    assert "no time" in dead[0].reason
    assert "2 times" in dead[1].reason


@pytest.mark.parametrize(
    ("text", "kind", "headers", "trouble"),
    [
        (
            "<> tree:relation [ tree:node <http://other.example/2> ] .",
            "text/turtle",
            {},
            "another server",
        ),
        ("", "text/html", {}, "no RDF"),
        ("<> tree", "text/turtle", {}, "cannot be parsed: tree is not"),
        ("<x> tree:member [ sosa:resultTime 1 ] .", "text/turtle", {}, "a member without an IRI"),
        ("<> tree:relation [ tree:node <http://[> ] .", "text/turtle", {}, "nvalid"),
        ("", "text/turtle", {"Location": "http://elsewhere.example/"}, "another server"),
        ("", "text/turtle", {"Secret": "x"}, "answers with 401"),
        ("<> tree:relation [ tree:node <gone> ] .", "text/turtle", {}, "answers with 404"),
    ],
)
def test_what_a_server_does_wrong_is_trouble(
    pages: Pages, tmp_path: Path, text: str, kind: str, headers: dict[str, str], trouble: str
) -> None:
    pages.put("/feed", text, kind, **headers)
    with source_of(pages, tmp_path / "log") as source:
        deadline = time.monotonic() + SECONDS
        while source.trouble is None:
            assert not source.next_batch(0.05).ended
            assert time.monotonic() < deadline
        assert trouble in source.trouble


def test_a_token_is_sent(pages: Pages, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LDES_TOKEN", "hidden")
    pages.put("/feed", "<x> tree:member :m . :m sosa:resultTime 1 .", Secret="hidden")
    with source_of(pages, tmp_path / "log", token="LDES_TOKEN") as source:
        assert len(taken(source)) == 1


def test_a_server_that_comes_back_is_read(
    pages: Pages, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Members of pages that were fetched before another failed are not lost."""
    monkeypatch.setattr("kaicep.connectors.sources.ldes._RETRY", 0.05)
    relation = "<feed> tree:relation [ a tree:LessThanRelation ; tree:node <early> ] ."
    pages.put("/feed", "<x> tree:member :m2 . :m2 sosa:resultTime 2 ." + relation, ETag='"one"')
    with source_of(pages, tmp_path / "log") as source:
        deadline = time.monotonic() + SECONDS
        while source.trouble is None:
            source.next_batch(0.05)
            assert time.monotonic() < deadline
        pages.put("/early", "<x> tree:member :m1 . :m1 sosa:resultTime 1 .")
        assert [each.ts // 1_000_000 for each in taken(source)] == [1, 2]


def test_no_page_is_fetched_while_too_many_members_wait(pages: Pages, tmp_path: Path) -> None:
    chain(pages)
    with source_of(pages, tmp_path / "log", backlog=1, batch=1) as source:
        deadline = time.monotonic() + SECONDS
        while pages.fetched["/2", 200] == 0:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert pages.fetched["/3", 200] == 0
        assert len(taken(source)) == 4


def test_a_crash_between_the_log_and_the_note_of_its_members(pages: Pages, tmp_path: Path) -> None:
    chain(pages)
    with source_of(pages, tmp_path / "log") as source:
        assert len(taken(source)) == 4
    note = tmp_path / "log" / "members"
    note.write_bytes(note.read_bytes()[:-20])
    with source_of(pages, tmp_path / "log", {0: 4}) as source:
        assert taken(source) == []


def test_a_note_that_is_gone_is_not_made_up(tmp_path: Path) -> None:
    log = Log(tmp_path / "log", segment=1)
    for member in ("urn:a", "urn:b"):
        log.append([b'{"member": "%s"}' % member.encode()])
    assert "<urn:a>" not in _Members(tmp_path / "log", log)
    assert "urn:a" in _Members(tmp_path / "log", log)
    log.forget(1)
    (tmp_path / "log" / "members").unlink()
    with pytest.raises(Failure, match="is not whole"):
        _Members(tmp_path / "log", log)
    log.close()


@pytest.mark.parametrize("url", ["feed", "file:///etc/passwd", "ftp://x/y", "http://"])
def test_an_address_that_is_none(tmp_path: Path, url: str) -> None:
    with pytest.raises(Mistake, match="no address of a page"):
        make_source(Form("s"), {"kind": "ldes", "url": url, "log": str(tmp_path)})
