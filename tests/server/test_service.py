"""Who may come in, and what they may do there: every limit is tried."""

from __future__ import annotations

import http.client
import json
import logging
import queue
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from tests.deployment.processes import SECONDS, write
from tests.servers import free_port

from kaicep.deployment.config import load_config
from kaicep.deployment.guests import Allowance
from kaicep.deployment.running import Deployment
from kaicep.errors import Mistake
from kaicep.server import app as served
from kaicep.server.app import Desk
from kaicep.server.service import Client, Service

pytestmark = pytest.mark.slow

START = 1336381200
SINCE = "WITHIN [2012-05-07T09:00, )"
HIGH = f"SELECT ?e.x FROM (?e, s) {SINCE} FILTER (?e.x > 5)"
SECRET = "s3cret-and-nobodys-business"
TOML = """
name = "tried"
tick = "20ms"
{top}
[knowledge]
files = ["k.ttl"]
[streams.s]
annotation = "s.json"
source = {{kind = "files", path = "s.jsonl", follow = true}}
[sinks.out]
kind = "files"
path = "out.jsonl"
"""
HEAVY = (
    "SELECT ?e.x FROM (?e, s) PATH {?e v:of ?k . ?k v:near ?a . ?b v:near ?c . ?d v:near ?f . ?g v:near ?h . "
    "FILTER (STRLEN(CONCAT(STR(?a), STR(?c), STR(?f), STR(?h))) > 1000)}"
)
THINGS = "\n".join(
    f"<urn:v:k{n}> a <urn:v:Thing> ; <urn:v:near> <urn:v:k{(n * 7 + 1) % 400}> ." for n in range(400)
)


def event(second: float, x: int, k: str = "k1") -> str:
    return json.dumps({"ts": START + second, "x": x, "k": k}) + "\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("kaicep.deployment.sinks._QUIET", 0.05)
    write(
        tmp_path,
        {
            "kaicep.toml": TOML.format(top=""),
            "queries/own.chi": HIGH,
            "k.ttl": THINGS,
            "s.json": '{"stream": "s", "prefixes": {"v": "urn:v:"},'
            ' "entities": {"k": {"property": "v:of", "iri": "v:{value}"}}}',
            "s.jsonl": event(0, 1) + event(1, 7),
        },
    )
    return tmp_path


class Asking:
    """A running deployment, and requests to it."""

    def __init__(self, deployment: Deployment, service: Service) -> None:
        self.deployment = deployment
        self.port = int(service.url.rsplit(":", 1)[1])
        self.headers: dict[str, str] = {}

    def __call__(self, method: str, path: str, body: bytes | str = b"", **headers: str) -> tuple[int, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        sent = {**self.headers, **{name.replace("_", "-"): value for name, value in headers.items()}}
        connection.request(method, path, body, sent)
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        kind = answer.getheader("Content-Type") or ""
        return answer.status, json.loads(text) if "json" in kind else text

    def until(self, path: str, what: Callable[[Any], bool]) -> Any:
        deadline = time.monotonic() + SECONDS
        while True:
            status, found = self("GET", path)
            if status == 200 and what(found):
                return found
            assert time.monotonic() < deadline, found
            time.sleep(0.02)


@contextmanager
def asking(folder: Path) -> Iterator[Asking]:
    deployment = Deployment(load_config(folder / "kaicep.toml"))
    with Service(deployment) as service:
        thread = threading.Thread(target=deployment.run)
        thread.start()
        try:
            yield Asking(deployment, service)
        finally:
            deployment.stop()
            thread.join()


@pytest.fixture
def ask(folder: Path) -> Iterator[Asking]:
    with asking(folder) as made:
        made.until("/queries", lambda found: found.get("own", {}).get("state") == "live")
        yield made


# --- what it is for ---------------------------------------------------------------------------------


def test_it_says_how_it_is(ask: Asking) -> None:
    assert ask("GET", "/health") == (200, {"status": "ok"})
    found = ask.until("/status", lambda found: found["queries"]["own"].get("matches") == 1)
    assert found["streams"]["s"]["positions"] == {"0": 2}
    assert found["archive"]["events"] == 2
    assert found["streams"]["s"]["watermark"] == "2012-05-07T09:00:01.000000Z"
    _, metrics = ask("GET", "/metrics")
    assert 'kaicep_stream_events_total{stream="s"} 2.0' in metrics
    assert 'kaicep_query_state{query="own",state="live"} 1.0' in metrics


def test_a_query_comes_goes_back_in_time_and_is_followed(ask: Asking, folder: Path) -> None:
    text = f"SELECT ?e.x FROM (?e, s) {SINCE}"
    status, made = ask("POST", "/queries/all", text)
    assert (status, made["outside"], made["text"]) == (201, True, text)
    ask.until("/queries/all", lambda found: found["state"] == "live" and found["matches"] == 2)
    seen: queue.Queue[int] = queue.Queue()
    client = Client(ask.deployment.config)

    def follow() -> None:
        for line in client.matches("all", last=1):
            seen.put(json.loads(line)["select"]["x"])

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    assert seen.get(timeout=120) == 7
    with (folder / "s.jsonl").open("a") as file:
        file.write(event(2, 4))
    assert seen.get(timeout=120) == 4
    assert ask("DELETE", "/queries/all") == (200, {"removed": "all"})
    assert ask("GET", "/queries/all")[0] == 404


def test_a_query_that_came_in_survives(folder: Path) -> None:
    (folder / "kaicep.toml").write_text(TOML.format(top="") + "guests = true\n")
    with asking(folder) as ask:
        ask.until("/queries", lambda found: found.get("own", {}).get("state") == "live")
        ask("POST", "/queries/all", f"SELECT ?e.x FROM (?e, s) {SINCE}")
        ask.until("/queries/all", lambda found: found.get("matches") == 2)
    with asking(folder) as ask:
        found = ask.until("/queries/all", lambda found: found["state"] == "live")
        assert (found["matches"], found["outside"]) == (2, True)
    told = [json.loads(each) for each in (folder / "out.jsonl").read_text().splitlines()]
    assert len([each for each in told if each["query"] == "all"]) == 2


def test_both_languages(ask: Asking) -> None:
    text = "PREFIX v: <urn:v:> SELECT ?k { ?e v:of ?k }"
    assert ask("POST", "/queries/of?language=ep-sparql", text)[0] == 201
    assert ask("POST", "/queries/of?language=sql", text)[0] == 400


# --- who may come in --------------------------------------------------------------------------------


def test_it_listens_on_this_machine_alone_unless_told_otherwise(folder: Path) -> None:
    deployment = Deployment(load_config(folder / "kaicep.toml"))
    service = Service(deployment)
    try:
        assert service.url.startswith("http://127.0.0.1:")
    finally:
        service.__exit__()
        deployment.close()


def test_secrets_of_sources_and_sinks_are_shown_nowhere(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither while all is well nor in the trouble of a broker or a hook that is not there."""
    pytest.importorskip("confluent_kafka")
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("TRIED_SECRET", SECRET)
    port = free_port()
    more = f"""
[streams.t]
types = {{x = "int64"}}
[streams.t.source]
kind = "kafka"
servers = "127.0.0.1:{port}"
topic = "t"
settings = {{"security.protocol" = "SASL_PLAINTEXT", "sasl.mechanism" = "PLAIN", "sasl.username" = "me"}}
secrets = {{"sasl.password" = "TRIED_SECRET"}}
[sinks.hook]
kind = "webhook"
url = "http://127.0.0.1:{port}/"
token = "TRIED_SECRET"
patience = "50ms"
"""
    write(folder, {"kaicep.toml": TOML.format(top="") + more})
    with asking(folder) as ask:
        shown: list[Any] = [
            ask.until("/status", lambda found: found["sinks"]["hook"]["trouble"] is not None),
            ask.until("/status", lambda found: found["streams"]["t"]["trouble"] is not None),
            *(ask("GET", path) for path in ("/metrics", "/queries", "/queries/own")),
        ]
    written = [path.read_text(errors="replace") for path in (folder / "state").glob("*.json")]
    written += [path.read_text() for path in (folder / "state" / "marks").iterdir()]
    assert SECRET not in str(shown) + caplog.text + str(written) + repr(ask.deployment.config)


def test_beyond_this_machine_it_starts_only_with_a_token(folder: Path) -> None:
    write(folder, {"kaicep.toml": TOML.format(top='listen = "0.0.0.0:0"')})
    with pytest.raises(Mistake, match="can be reached by others, and there is no token"):
        load_config(folder / "kaicep.toml")


def test_a_token_never_stands_in_the_file(folder: Path) -> None:
    write(folder, {"kaicep.toml": TOML.format(top='token = "abc"')})
    with pytest.raises(Mistake, match="never in the file"):
        load_config(folder / "kaicep.toml")


@pytest.mark.parametrize("where", ["token_env", "token_file"])
def test_with_a_token_nobody_comes_in_without_it(
    folder: Path, where: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("TRIED_TOKEN", SECRET)
    write(folder, {"token": SECRET + "\n"})
    value = "TRIED_TOKEN" if where == "token_env" else "token"
    write(folder, {"kaicep.toml": TOML.format(top=f'listen = "0.0.0.0:0"\n{where} = "{value}"')})
    with asking(folder) as ask:
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": SECRET[:-1]}):
            assert ask("GET", "/status", **headers)[0] == 401
            assert ask("POST", "/queries/x", HIGH, **headers)[0] == 401
        assert ask("GET", "/health")[0] == 200
        ask.headers = {"Authorization": f"Bearer {SECRET}"}
        shown = [ask("GET", path) for path in ("/status", "/metrics", "/queries", "/queries/own", "/nowhere")]
        assert [status for status, _ in shown] == [200, 200, 200, 200, 404]
        assert Client(ask.deployment.config).status()["name"] == "tried"
    assert SECRET not in str(shown) + caplog.text + (folder / "state" / "registered.json").read_text()


def test_a_missing_token_is_told_without_showing_anything(folder: Path) -> None:
    write(folder, {"kaicep.toml": TOML.format(top='token_env = "NOT_SET_ANYWHERE"')})
    deployment = Deployment(load_config(folder / "kaicep.toml"))
    with pytest.raises(Mistake, match="NOT_SET_ANYWHERE is not set"):
        Service(deployment)
    deployment.close()


def test_tokens_are_compared_in_constant_time() -> None:
    assert "hmac.compare_digest" in Path(served.__file__).read_text()


def test_a_web_page_cannot_ask_in_the_name_of_its_reader(ask: Asking) -> None:
    assert ask("GET", "/status", Origin="http://evil.example")[0] == 403
    assert ask("GET", "/status", Host="evil.example:80")[0] == 403  # a name that leads here by DNS


def test_a_port_in_use_is_told(folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        write(folder, {"kaicep.toml": TOML.format(top=f'listen = "127.0.0.1:{taken.getsockname()[1]}"')})
        deployment = Deployment(load_config(folder / "kaicep.toml"))
        with pytest.raises(Mistake, match="cannot listen on"):
            Service(deployment)
        deployment.close()


# --- how much they may ask for ----------------------------------------------------------------------


def test_a_request_may_not_be_too_large(ask: Asking) -> None:
    assert ask("POST", "/queries/big", b"#" * (64 << 10) + b"#")[0] == 413
    with socket.create_connection(("127.0.0.1", ask.port)) as raw:
        raw.sendall(b"POST /queries/x HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert b" 411 " in raw.recv(100)


def test_numbers_of_absurd_size_are_refused(ask: Asking) -> None:
    for number in ("9" * 5_000, "-1", "٣", "1e9", ""):
        assert ask("GET", f"/queries/own/matches?last={quote(number)}")[0] == 400
    assert ask("POST", "/queries/x", HIGH, Content_Length="9" * 400)[0] == 400


@pytest.mark.parametrize(
    ("head", "status"),
    [
        ("Content-Length: 2\r\nContent-Length: 3\r\n\r\nab", 400),
        ("Content-Length: 2\r\nContent-Length: 2\r\n\r\nab", 400),
        ("Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\nab", 400),
        ("Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 411),
        ("X: " + "x" * 200_000, 400),
    ],
)
def test_a_body_has_one_length_that_is_said(ask: Asking, head: str, status: int) -> None:
    with socket.create_connection(("127.0.0.1", ask.port)) as raw:
        raw.sendall(f"POST /queries/x HTTP/1.1\r\nHost: 127.0.0.1\r\n{head}".encode())
        assert raw.recv(12) == f"HTTP/1.1 {status}".encode()


def test_who_sends_slowly_holds_up_nobody(ask: Asking, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that wait longest give way, and none may wait for ever."""
    monkeypatch.setattr("kaicep.connectors.http._CONNECTIONS", 8)
    slow = [socket.create_connection(("127.0.0.1", ask.port)) for _ in range(30)]
    for each in slow:
        with suppress(OSError):
            each.sendall(b"GET /sta")
    assert ask("GET", "/health")[0] == 200
    assert ask("GET", "/status")[0] == 200
    for each in slow:
        each.close()


@pytest.mark.parametrize(
    "sent", ["GET /sta", "POST /queries/x HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 9\r\n\r\n"]
)
def test_a_request_must_come_in_time(folder: Path, sent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kaicep.connectors.http._HEAD", 0.1)
    monkeypatch.setattr("kaicep.connectors.http._BODY", 0.1)
    with asking(folder) as ask, socket.create_connection(("127.0.0.1", ask.port)) as raw:
        raw.settimeout(60)
        raw.sendall(sent.encode())
        with suppress(ConnectionResetError):
            assert raw.recv(12) in (b"", b"HTTP/1.1 408")


def test_who_may_only_read_changes_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIED_TOKEN", SECRET)
    monkeypatch.setenv("TRIED_READ", "look")
    write(
        folder, {"kaicep.toml": TOML.format(top='token_env = "TRIED_TOKEN"\nread_token_env = "TRIED_READ"')}
    )
    with asking(folder) as ask:
        ask.headers = {"Authorization": "Bearer look"}
        assert ask("GET", "/queries/own")[0] == 200
        assert ask("POST", "/queries/more", HIGH)[0] == 403
        assert ask("DELETE", "/queries/own")[0] == 403
        ask.headers = {"Authorization": f"Bearer {SECRET}"}
        assert ask("POST", "/queries/more", HIGH)[0] == 201


def test_the_openapi_document_names_every_path(ask: Asking) -> None:
    _, found = ask("GET", "/openapi.json")
    for each in served.OPERATIONS:
        assert found["paths"][each.path][each.method.lower()]["summary"] == each.summary


def test_while_the_deployment_is_busy_everybody_is_answered(ask: Asking) -> None:
    """Nothing that is read is asked of the deployment's own thread."""
    free = threading.Event()
    threading.Thread(target=lambda: ask.deployment.ask(free.wait), daemon=True).start()
    try:
        for path in ("/health", "/status", "/metrics", "/queries", "/queries/own", "/matches/0"):
            assert ask("GET", path)[0] == 200
    finally:
        free.set()


@pytest.mark.parametrize("name", ["..%2f..%2fetc", "a%20b", "s", "x" * 65, "%00"])
def test_a_name_must_be_one(ask: Asking, name: str) -> None:
    assert ask("POST", f"/queries/{name}", HIGH)[0] in (400, 404)


def test_a_query_of_the_deployment_itself_is_not_touched(ask: Asking) -> None:
    for method in ("POST", "DELETE"):
        status, answer = ask(method, "/queries/own", "SELECT ?e.x FROM (?e, s)")
        assert status == 400
        assert "of the deployment itself" in answer["error"]


def test_there_is_room_for_so_many_queries(ask: Asking, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served, "_QUERIES", 0)
    assert ask("POST", "/queries/more", HIGH)[0] == 429


def test_there_is_room_for_so_many_followers(ask: Asking) -> None:
    following = []
    for _ in range(served._FOLLOWERS):
        connection = http.client.HTTPConnection("127.0.0.1", ask.port, timeout=120)
        connection.request("GET", "/queries/own/matches")
        assert connection.getresponse().status == 200
        following.append(connection)
    assert ask("GET", "/queries/own/matches")[0] == 503
    for connection in following:
        connection.close()


def test_a_query_from_outside_that_takes_too_long_is_ended_and_others_go_on(ask: Asking) -> None:
    ask.deployment.catalogue.guests.allowed = Allowance(setting_up=0.0)
    assert ask("POST", "/queries/slow", HIGH)[0] == 201
    found = ask.until("/queries", lambda found: found.get("slow", {}).get("state") == "failed")
    assert "takes longer than" in found["slow"]["problem"]
    assert found.get("own", {}).get("state") == "live"


def test_what_a_query_from_outside_holds_is_limited_and_others_go_on(
    ask: Asking, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kaicep.kernel.operator import Limits

    monkeypatch.setattr("kaicep.deployment.catalogue.FROM_OUTSIDE", Limits(held=5))
    text = f"SELECT ?a.x FROM (?a, s), (?b, s) {SINCE} FILTER (?b.x > 100) SEQ (?a, ?b) WINDOW (?a, ?b, 1h)"
    assert ask("POST", "/queries/greedy", text)[0] == 201
    with (folder / "s.jsonl").open("a") as file:
        file.writelines(event(2 + n, 9) for n in range(20))
    found = ask.until("/queries", lambda found: found["greedy"]["state"] == "failed")
    assert "greedy" in found["greedy"]["problem"]
    ask.until("/queries/own", lambda found: found["matches"] == 21 and found["state"] == "live")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("SELECT ?k { SERVICE <http://127.0.0.1/> { ?e <urn:v:of> ?k } }", "SERVICE is not supported"),
        ("SELECT ?k FROM <file:///etc/passwd> { ?e <urn:v:of> ?k }", "FROM"),
        ("LOAD <file:///etc/passwd>", "LOAD"),
        ("INSERT DATA { <urn:v:k1> a <urn:v:Mine> }", "INSERT"),
        ("DELETE WHERE { ?s ?p ?o }", "DELETE"),
    ],
)
def test_ep_sparql_asks_and_does_nothing_else(ask: Asking, text: str, reason: str) -> None:
    status, answer = ask("POST", "/queries/bad?language=ep-sparql", text)
    assert status == 400
    assert reason in answer["error"]
    assert ask("GET", "/queries/bad")[0] == 404


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('SELECT ?e.x FROM (?e, s) FILTER (regex(?e.k, "(?=a+)b"))', "perl operator"),
        (
            "SELECT ?e.x FROM (?e, s) PATH {SERVICE <http://127.0.0.1/> {?e v:of ?k}}",
            "SERVICE is not supported",
        ),
        ("SELECT ?e.x FROM (?e, s) PATH {?e v:of ?k} ; DELETE WHERE {?a ?b ?c}", "found ;"),
        ("SELECT ?e.x FROM (?e, s) PATH {LOAD <file:///etc/passwd>}", "LOAD"),
        (HEAVY, "takes longer than"),
        ("SELECT ?e.x FROM (?e, nowhere)", "nowhere"),
    ],
)
def test_what_is_not_let_in(folder: Path, text: str, reason: str) -> None:
    deployment = Deployment(load_config(folder / "kaicep.toml"))
    deployment.open()
    while deployment.tick():
        pass
    deployment.drain()
    deployment.close()
    desk = Desk(folder / "kaicep.toml")
    with pytest.raises(Mistake) as refused:
        desk.ask("admit", 1.0 if text is HEAVY else 60.0, name="bad", suffix=".chi", text=text)
    assert reason in str(refused.value)
    desk.close()


def test_nothing_from_outside_is_unpickled_or_evaluated() -> None:
    rooms = [Path(served.__file__).parent, Path(served.__file__).parent.parent / "deployment"]
    for room in rooms:
        for path in room.glob("*.py"):
            assert not re.search(r"\b(pickle|marshal|eval\(|exec\(|shell=True)", path.read_text()), path
