"""Events posted over HTTP, to a real socket: what is answered 200 is durable, and there are limits."""

from __future__ import annotations

import http.client
import json
import socket
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from tests.connectors import messages

from kaicep.connectors.contract import Position
from kaicep.connectors.http import HttpSource
from kaicep.connectors.log import Log
from kaicep.connectors.registry import make_source
from kaicep.connectors.shape import Form
from kaicep.errors import Mistake
from kaicep.plan.rdf_text import FORMATS
from kaicep.processes import bound


@contextmanager
def listening(log: Path, position: Position | None = None, **options: object) -> Iterator[HttpSource]:
    with make_source(Form("s"), {"kind": "http", "log": str(log), **options}) as source:
        assert isinstance(source, HttpSource)
        source.open(position)
        yield source


def post(
    address: str, body: object, headers: Mapping[str, str] | None = None, method: str = "POST"
) -> tuple[int, dict[str, Any], http.client.HTTPMessage]:
    """The status, the answer and the headers."""
    parts = urlsplit(address)
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=120)
    try:
        connection.request(method, parts.path, data, dict(headers or {}))
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read() or b"{}"), answer.headers
    finally:
        connection.close()


def test_one_event_or_many(tmp_path: Path) -> None:
    with listening(tmp_path) as source:
        assert post(source.address, {"ts": 1, "x": 1})[:2] == (200, {"accepted": 1, "first": 0, "next": 1})
        assert post(source.address, [{"ts": 2, "x": 2}, {"ts": 3, "x": 3}])[:2] == (
            200,
            {"accepted": 2, "first": 1, "next": 3},
        )
        lines = {"Content-Type": "application/x-ndjson; charset=utf-8"}
        assert post(source.address, b'{"ts": 4}\r\n\n{"ts": 5}', lines)[:2] == (
            200,
            {"accepted": 2, "first": 3, "next": 5},
        )
        assert post(source.address, [])[:2] == (200, {"accepted": 0})
        batch = source.next_batch(5)
    assert [(each.part, each.seq, each.ts // 1_000_000) for each in batch.events] == [
        (0, seq, seq + 1) for seq in range(5)
    ]
    assert batch.position == {0: 5}


def test_a_restart_goes_on_with_the_same_numbers(tmp_path: Path) -> None:
    with listening(tmp_path) as source:
        post(source.address, [{"ts": 1}, {"ts": 2}])
        position = source.next_batch(5).position
        post(source.address, {"ts": 3})
    with listening(tmp_path, position) as source:
        post(source.address, {"ts": 4})
        assert [each.seq for each in source.next_batch(5).events] == [2, 3]
    with listening(tmp_path) as source:
        assert [each.seq for each in source.next_batch(5).events] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"oops", "not JSON: expecting value at column 1"),
        (b"", "not JSON: expecting value at column 1"),
        (b"7", "not a JSON object but a single value"),
        (b'[{"ts": 1}, 2]', "event 2: not a JSON object"),
        (b"[" * 100_000, "not JSON"),
        (b'[{"ts": 1}', "not JSON"),
    ],
)
def test_what_holds_no_events_is_refused_whole(tmp_path: Path, body: bytes, reason: str) -> None:
    with listening(tmp_path) as source:
        status, answer, _ = post(source.address, body)
        assert status == 400
        assert answer["error"].startswith(reason)
        assert not source.next_batch(0)


def test_a_bad_line_is_named(tmp_path: Path) -> None:
    with listening(tmp_path) as source:
        lines = {"Content-Type": "application/x-ndjson"}
        status, answer, _ = post(source.address, b'{"ts": 1}\noops\n', lines)
        assert (status, answer["error"]) == (400, "line 2: not JSON: expecting value at column 1")
        assert not source.next_batch(0)


def test_an_event_that_is_no_event_of_the_stream_is_a_dead_letter(tmp_path: Path) -> None:
    with listening(tmp_path) as source:
        post(source.address, [{"ts": 1, "x": 1}, {"x": 2}])
        batch = source.next_batch(5)
    assert [each.seq for each in batch.events] == [0]
    assert [(each.seq, each.record_text) for each in batch.dead] == [(1, '{"x": 2}')]
    assert batch.position == {0: 2}


def test_a_request_that_is_too_large_is_refused(tmp_path: Path) -> None:
    with listening(tmp_path, request=1_000, events=3) as source:
        status, answer, _ = post(source.address, {"ts": 1, "pad": "." * 3_000_000})
        assert status == 413
        assert answer["error"].endswith("a request has at most 1000")
        assert post(source.address, [{"ts": 1}] * 4)[0] == 413
        assert post(source.address, [{"ts": 1}] * 3)[0] == 200


def test_a_reader_that_does_not_keep_up_slows_senders_down(tmp_path: Path) -> None:
    with listening(tmp_path, backlog=2) as source:
        assert post(source.address, [{"ts": 1}, {"ts": 2}])[0] == 200
        status, _, headers = post(source.address, {"ts": 3})
        assert (status, headers["Retry-After"]) == (429, "1")
        source.next_batch(0)
        assert post(source.address, {"ts": 3})[0] == 200


def test_a_log_that_cannot_be_written_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    with listening(tmp_path) as source:
        monkeypatch.setattr("kaicep.connectors.log.os.pwrite", full)
        status, answer, headers = post(source.address, {"ts": 1})
        assert (status, headers["Retry-After"]) == (503, "1")
        assert "No space left" in answer["error"]
        monkeypatch.undo()
        assert post(source.address, {"ts": 1})[:2] == (200, {"accepted": 1, "first": 0, "next": 1})


def test_other_methods_and_places_are_refused(tmp_path: Path) -> None:
    with listening(tmp_path) as source:
        status, _, headers = post(source.address, b"", method="GET")
        assert (status, headers["Allow"]) == (405, "POST")
        assert post(source.address.replace("/events", "/else"), {"ts": 1})[0] == 404


def test_a_body_without_a_length_is_refused(tmp_path: Path) -> None:
    with listening(tmp_path) as source:
        parts = urlsplit(source.address)
        with socket.create_connection((parts.hostname or "", parts.port or 0), timeout=120) as raw:
            raw.sendall(b"POST /events HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n")
            assert raw.recv(12) == b"HTTP/1.1 411"


def test_half_a_request_leaves_nothing(tmp_path: Path) -> None:
    with listening(tmp_path) as source:
        parts = urlsplit(source.address)
        with socket.create_connection((parts.hostname or "", parts.port or 0), timeout=120) as raw:
            raw.sendall(b'POST /events HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 20\r\n\r\n{"ts": 1}')
        assert post(source.address, {"ts": 2})[1]["first"] == 0


def test_other_machines_need_a_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"kind": "http", "log": str(tmp_path), "host": "0.0.0.0"}
    with pytest.raises(Mistake, match="there is no token"):
        make_source(Form("s"), options)
    with pytest.raises(Mistake, match="the environment variable HTTP_TOKEN is not set"):
        make_source(Form("s"), {**options, "token": "HTTP_TOKEN"})
    monkeypatch.setenv("HTTP_TOKEN", "tell nobody")
    with listening(tmp_path, token="HTTP_TOKEN") as source:
        assert post(source.address, {"ts": 1})[0] == 401
        assert post(source.address, {"ts": 1}, {"Authorization": "Bearer guess"})[0] == 401
        assert post(source.address, {"ts": 1}, {"Authorization": "Bearer tell nobody"})[0] == 200


def test_a_port_in_use_is_a_mistake(tmp_path: Path) -> None:
    with listening(tmp_path / "one") as source:
        port = urlsplit(source.address).port
        other = make_source(Form("s"), {"kind": "http", "log": str(tmp_path / "two"), "port": port})
        with pytest.raises(Mistake, match=r"cannot listen on 127\.0\.0\.1:\d+: Address already in use"):
            other.open()
    other.open()
    other.close()


@pytest.mark.slow
def test_what_was_answered_200_survives_kill_9(tmp_path: Path) -> None:
    program = """
        import sys, threading
        from kaicep.connectors.registry import make_source
        from kaicep.connectors.shape import Form
        source = make_source(Form("s"), {"kind": "http", "log": sys.argv[1]})
        source.open()
        print(source.address, flush=True)
        threading.Event().wait()
    """
    accepted: list[int] = []
    for _ in range(3):
        process = subprocess.Popen(
            bound([sys.executable, "-c", textwrap.dedent(program), str(tmp_path)]),
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        for number in range(20):
            status, answer, _ = post(address, {"ts": number, "first": len(accepted)})
            assert status == 200
            assert answer["first"] == len(accepted)
            accepted.append(number)
        process.kill()
        process.wait()
    log = Log(tmp_path)
    records = [json.loads(each) for each in log.read(0, 1_000)]
    log.close()
    assert records == [{"ts": number, "first": place} for place, number in enumerate(accepted)]


@pytest.mark.parametrize("format", FORMATS)
def test_a_document_of_rdf_is_one_record(tmp_path: Path, format: str) -> None:
    """One that is no record is refused, so that its sender hears of it."""
    with make_source(messages.form(format), {"kind": "http", "log": str(tmp_path)}) as source:
        assert isinstance(source, HttpSource)
        source.open()
        answers = [post(source.address, each)[:2] for each in messages.messages(format)]
        events = source.next_batch(5).events
    assert [(status, answer.get("first")) for status, answer in answers[:2]] == [(200, 0), (200, 1)]
    assert [status for status, _ in answers[2:]] == [400, 400]
    assert "no time" in answers[2][1]["error"]
    assert [each.seq for each in events] == [0, 1]
