"""Queries from outside, hostile ones: whatever they do, a query of the deployment goes on beside them."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.deployment.processes import SECONDS, matches, running, write
from tests.server.test_service import HIGH, SINCE, START, TOML, Asking, asking, event

from kaicep.archive.archive import Archive
from kaicep.deployment.config import load_config
from kaicep.deployment.guest_process import _Guest
from kaicep.deployment.guests import Allowance, Guest, Guests
from kaicep.errors import Failure
from kaicep.plan.time import format_time
from kaicep.server.service import Client

pytestmark = pytest.mark.slow

SMALL = Allowance(step=1.0, setting_up=15.0, memory=600 << 20, matches=500.0, nice=0)
AT_ONCE = float(os.environ.get("KAICEP_AT_ONCE", "5"))
"""A victim's match is there after so many seconds at most, beside what it takes without a guest. It is less
than one where nothing else runs (KAICEP_AT_ONCE=1); tests run beside others."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("kaicep.deployment.sinks._QUIET", 0.05)
    monkeypatch.setattr("kaicep.deployment.guests.ALLOWED", SMALL)
    near = "".join(f"<urn:v:k{n}> <urn:v:near> <urn:v:k{n + 1}> .\n" for n in range(2_000))
    write(
        tmp_path,
        {
            "kaicep.toml": TOML.format(top=""),
            "queries/victim.chi": "SELECT ?e.x FROM (?e, s) FILTER (?e.x > 5)",
            "k.ttl": near,
            "s.json": '{"stream": "s", "prefixes": {"v": "urn:v:"},'
            ' "entities": {"k": {"property": "v:of", "iri": "v:{value}"}}}',
            "s.jsonl": "".join(event(n, 1) for n in range(4_000)),
        },
    )
    return tmp_path


class Victim:
    """A query of the deployment: how long a match of it takes while something else goes on."""

    def __init__(self, ask: Asking, folder: Path) -> None:
        self._ask, self._folder = ask, folder
        self._second = 10_000
        ask.until("/queries", lambda found: found.get("victim", {}).get("state") == "live")
        self.usual = max(self.latency() for _ in range(3))

    def latency(self, x: int = 9, k: str = "k1") -> float:
        begun = time.monotonic()
        self._second += 1
        with (self._folder / "s.jsonl").open("a") as file:
            file.write(event(self._second, x, k))
        count = self._ask.deployment.catalogue.session("victim").told["victim"]  # type: ignore[union-attr]
        while self._ask.deployment.catalogue.session("victim").told["victim"] == count:  # type: ignore[union-attr]
            time.sleep(0.005)
            assert time.monotonic() - begun < 60, "the victim stands still"
        return time.monotonic() - begun

    def beside(self, name: str, least: int = 3) -> dict[str, Any]:
        """Lets matches come until a guest has come to something; none may take long."""
        took, found = [], {"state": "starting"}
        for _ in range(2_000):
            took.append(self.latency())
            time.sleep(0.05)
            found = self._ask("GET", "/queries")[1].get(name, {"state": "gone"})
            if found["state"] not in ("starting", "catching up", "waiting") and len(took) >= least:
                break
        assert max(took) < self.usual + AT_ONCE, (max(took), self.usual)
        return found


@pytest.fixture
def victim(folder: Path) -> Iterator[Victim]:
    with asking(folder) as ask:
        yield Victim(ask, folder)


def _post(victim: Victim, text: str, language: str = "chi-cep", name: str = "guest") -> tuple[int, Any]:
    """Posts a query, while the victim goes on."""
    found: list[tuple[int, Any]] = []
    ask = victim._ask
    thread = threading.Thread(
        target=lambda: found.append(ask("POST", f"/queries/{name}?language={language}", text))
    )
    thread.start()
    took = []
    while thread.is_alive():
        took.append(victim.latency())
        time.sleep(0.05)
    assert max(took) < victim.usual + AT_ONCE, (max(took), victim.usual)
    return found[0]


SELF_JOIN = f"SELECT ?a.x FROM (?a, s), (?b, s) {SINCE} SEQ (?a, ?b) WINDOW (?a, ?b, 365d)"
GROWTH = "SELECT ?z { ?e <urn:v:of> ?k BIND (STR(?k) AS ?v0) " + "".join(
    f"BIND (CONCAT(?v{n}, ?v{n}) AS ?v{n + 1}) " for n in range(40)
)
CARTESIAN = (
    "?e v:of ?k . ?a v:near ?b . ?c v:near ?d . ?f v:near ?g . "
    "FILTER (STRLEN(CONCAT(STR(?a), STR(?c), STR(?f))) > 1000)"
)
HOSTILE = {
    "self-join": (SELF_JOIN, "chi-cep"),
    "ten-fold join": (
        "SELECT ?a.x FROM " + ", ".join(f"(?{v}, s)" for v in "abcdef") + f" {SINCE} FILTER (?f.x > 100) "
        "SEQ (?a, ?b, ?c, ?d, ?e, ?f) WINDOW (?a, ?f, 365d)",
        "chi-cep",
    ),
    "cartesian PATH": (
        f"SELECT ?e.x FROM (?e, s) {SINCE} PATH {{{CARTESIAN}}}",
        "chi-cep",
    ),
    "string growth": (GROWTH + "FILTER (STRLEN(?v40) > 10) BIND (?v40 AS ?z) }", "ep-sparql"),
    "cartesian triples": ("SELECT ?a { ?a ?b ?c . ?d ?e ?f . ?g ?h ?i . ?j ?k ?l . ?m ?n ?o }", "ep-sparql"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_query_is_refused_or_ended_and_the_victim_goes_on(victim: Victim, name: str) -> None:
    status, answer = _post(victim, *HOSTILE[name])
    queries = victim._ask("GET", "/queries")[1]
    if status != 201:
        assert status in (400, 503), answer
        assert "guest" not in queries  # it was answered with an error, and is not registered
        return
    found = victim.beside("guest")
    assert found["state"] == "failed", found
    assert victim._ask.deployment.catalogue.text("guest") is None


@pytest.mark.parametrize("count", [800, 12_000])
def test_a_long_list_is_a_lookup(victim: Victim, count: int) -> None:
    numbers = ",".join(str(n) for n in range(6, 6 + count))
    text = f"SELECT ?e.x FROM (?e, s) {SINCE} FILTER (?e.x IN ({numbers}))"
    if len(text) > 64 << 10:
        assert _post(victim, text)[0] == 413
        text = text.replace(numbers, ",".join(str(n % 10_000) for n in range(6, 6 + count)))
    status, answer = _post(victim, text)
    assert status == 201, answer
    assert victim.beside("guest")["state"] == "live"


def test_a_regular_expression_on_a_record_of_a_megabyte(victim: Victim) -> None:
    assert _post(victim, f'SELECT ?e.x FROM (?e, s) {SINCE} FILTER (regex(?e.k, "a.*c"))')[0] == 201
    assert victim.beside("guest")["state"] == "live"
    assert victim.latency(k="a" * (1 << 20)) < victim.usual + 2 * AT_ONCE
    assert victim.beside("guest")["state"] == "live"


@pytest.mark.parametrize(
    "text", ["(" * 20_000, "NOT " * 10_000 + "(?e.x > 1)", "?e.x" + "+1" * 15_000 + " > 3"]
)
def test_nesting_beyond_all_measure_is_refused(victim: Victim, text: str) -> None:
    status, answer = _post(victim, f"SELECT ?e.x FROM (?e, s) {SINCE} FILTER ({text})")
    assert status in (400, 201), answer
    if status == 400:
        assert "guest" not in victim._ask("GET", "/queries")[1]


def test_a_guest_finds_what_a_query_of_the_deployment_finds(folder: Path) -> None:
    (folder / "kaicep.toml").write_text(TOML.format(top="") + "guests = true\n")
    text = (
        f"SELECT ?a.x, ?b.x FROM (?a, s), (?b, s) {SINCE} JOIN (?a.k = ?b.k) FILTER (?a.x > ?b.x) "
        "SEQ (?a, ?b) WINDOW (?a, ?b, 10s)"
    )
    write(folder, {"queries/victim.chi": text})
    with (folder / "s.jsonl").open("a") as file:
        file.writelines(event(4_000 + n, n % 7, f"k{n % 3}") for n in range(100))
    with asking(folder) as ask:
        ask.until("/queries", lambda found: found.get("victim", {}).get("state") == "live")
        assert ask("POST", "/queries/guest", text)[0] == 201
        ask.until("/queries/guest", lambda found: found["state"] == "live")
        with (folder / "s.jsonl").open("a") as file:
            file.writelines(event(4_100 + n, n % 5, f"k{n % 2}") for n in range(100))
        count = ask.until("/queries/victim", lambda found: found["steps"]["in"] == 4_200)["matches"]
        ask.until("/queries/guest", lambda found: found["matches"] == count)
    with asking(folder) as ask:  # with its mark, it goes on where it stood
        with (folder / "s.jsonl").open("a") as file:
            file.writelines(event(4_200 + n, n % 5, f"k{n % 2}") for n in range(20))
        last = format_time((START + 4_219) * 1_000_000)
        count = ask.until("/queries/victim", lambda found: found["watermark"] == last)["matches"]
        ask.until("/queries/guest", lambda found: found["matches"] == count)
    found: dict[str, list[Any]] = {"victim": [], "guest": []}
    for each in matches(folder / "out.jsonl"):
        found[each["query"]].append(json.dumps([each["start"], each["end"], each["select"], each["events"]]))
    assert sorted(found["guest"]) == sorted(found["victim"])


class ByHand:
    """A deployment that goes on while a guest is still setting up, and the end of its connection."""

    def __init__(self, goes_on: Callable[[], dict[str, Any]]) -> None:
        self._goes_on: Callable[[], dict[str, Any]] | None = goes_on
        self._notes: list[dict[str, Any]] = []
        self.found: list[Any] = []

    def send_bytes(self, said: bytes) -> None:
        told = json.loads(said)
        self.found += [json.loads(row[3]) for row in told.get("found", ())]
        if "report" in told and self._goes_on is not None:
            goes_on, self._goes_on = self._goes_on, None
            self._notes.append(goes_on())

    def poll(self) -> bool:
        return bool(self._notes)

    def recv_bytes(self) -> bytes:
        if not self._notes:
            raise EOFError
        notes, self._notes = self._notes, []
        return json.dumps(notes).encode()


def test_what_comes_while_a_guest_goes_through_the_past_is_not_late(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[Guest] = []
    monkeypatch.setattr(Guests, "start", lambda _, guest: begun.append(guest))
    with asking(folder) as ask:
        ask.until("/queries", lambda found: found.get("victim", {}).get("state") == "live")
        assert ask("POST", "/queries/guest", HIGH)[0] == 201
    errand = begun[0].errand

    def goes_on() -> dict[str, Any]:
        with asking(folder) as ask:
            with (folder / "s.jsonl").open("a") as file:
                file.writelines(event(4_000 + n, 9) for n in range(20))
            ask.until("/queries/victim", lambda found: found["matches"] == 20)
        cut = json.loads(Archive(errand.config.archive).snapshot().cut.text())
        return {"cut": cut, "idle": [], "ended": [], "version": errand.version}

    deployment = ByHand(goes_on)
    with suppress(EOFError):
        _Guest(deployment, errand).run()  # type: ignore[arg-type]
    assert [each["events"]["e"]["seq"] for each in deployment.found] == list(range(4_000, 4_020))


def test_who_follows_a_guest_is_told_why_it_ended_and_no_restart_tries_it_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kaicep.deployment.guests.ALLOWED", Allowance(matches=0.5))
    with asking(folder) as ask:
        ask.until("/queries", lambda found: found.get("victim", {}).get("state") == "live")
        assert ask("POST", "/queries/guest", HIGH)[0] == 201
        ask.until("/queries/guest", lambda found: found["state"] == "live")
        client = Client(load_config(folder / "kaicep.toml"))
        told: list[str] = []

        def follow() -> None:
            try:
                list(client.matches("guest", 0))
            except Failure as failure:
                told.append(str(failure))

        thread = threading.Thread(target=follow)
        thread.start()
        while not _following(ask):
            time.sleep(0.01)
        with (folder / "s.jsonl").open("a") as file:
            file.writelines(event(5_000 + n, 9) for n in range(100))
        thread.join(SECONDS)
        assert told == ["guest was ended: it finds more than 0.5 matches a second"]
        found = ask.until("/queries/guest", lambda found: found["state"] == "failed")
        assert "0.5 matches a second" in found["problem"]
    with asking(folder) as ask:
        ask.until("/queries", lambda found: found.get("victim", {}).get("state") == "live")
        assert ask("GET", "/queries/guest")[1]["state"] == "failed"  # it is known why, and not tried again
        assert ask.deployment.catalogue.text("guest") is None
        assert not ask.deployment.catalogue.guests.running
        assert ask("DELETE", "/queries/guest")[0] == 200
        ask.until("/queries", lambda found: "guest" not in found)
    assert not [each for each in matches(folder / "out.jsonl") if each["query"] == "guest"]


def _following(ask: Asking) -> bool:
    return any(each.__self__.following for each in ask.deployment.listeners)  # type: ignore[attr-defined]


def test_a_query_of_the_folder_reads_nothing_of_a_guest_and_takes_its_name(folder: Path) -> None:
    with asking(folder) as ask:
        ask.until("/queries", lambda found: found.get("victim", {}).get("state") == "live")
        assert ask("POST", "/queries/guest", HIGH)[0] == 201
        ask.until("/queries/guest", lambda found: found["state"] == "live")
        write(folder, {"queries/reader.chi": f"SELECT ?e.x FROM (?e, guest) {SINCE}"})
        found = ask.until("/queries", lambda found: "problem" in found.get("reader", {}))
        assert "guest" in found["reader"]["problem"]
        write(folder, {"queries/guest.chi": HIGH})
        ask.until("/queries/guest", lambda found: found["state"] == "live" and not found["outside"])


def test_a_request_that_is_answered_with_an_error_has_registered_nothing(folder: Path) -> None:
    with asking(folder) as ask:
        ask.until("/queries", lambda found: found.get("victim", {}).get("state") == "live")
        deployment, busy = ask.deployment, threading.Event()
        whole = deployment.ask
        deployment.ask = lambda what, seconds=0.2: whole(what, seconds)  # type: ignore[method-assign]
        blocker = threading.Thread(target=lambda: whole(lambda: busy.wait(300), 300))
        blocker.start()
        status, answer = ask("POST", "/queries/guest", HIGH)
        busy.set()
        blocker.join()
        assert (status, "busy" in answer["error"]) == (503, True)
        whole(lambda: None)
        assert deployment.catalogue.text("guest") is None


def test_a_guest_that_is_killed_is_ended_and_others_go_on(folder: Path) -> None:
    with asking(folder) as ask:
        ask.until("/queries", lambda found: found.get("victim", {}).get("state") == "live")
        for name in ("first", "second"):
            assert ask("POST", f"/queries/{name}", HIGH)[0] == 201
            ask.until(f"/queries/{name}", lambda found: found["state"] == "live")
        numbers = {each.name: each.pid for each in ask.deployment.catalogue.guests.running.values()}
        os.kill(numbers["first"] or 0, signal.SIGSEGV)
        found = ask.until("/queries/first", lambda found: found["state"] == "failed")
        assert "SIGSEGV" in found["problem"]
        with (folder / "s.jsonl").open("a") as file:
            file.write(event(9_000, 9))
        ask.until("/queries/second", lambda found: found["matches"] == 1)
        ask.until("/queries/victim", lambda found: found["matches"] == 1)


def test_a_guest_ends_with_the_deployment(folder: Path) -> None:
    with running(folder, "kaicep.toml") as process:
        Client(load_config(folder / "kaicep.toml")).register("guest", "chi-cep", HIGH)
        numbers = _children(process.pid)
        assert numbers
    deadline = time.monotonic() + SECONDS
    while any(Path(f"/proc/{each}").exists() and "Z" not in _state(each) for each in numbers):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _children(pid: int) -> set[int]:
    found: set[int] = set()
    for each in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = each.read_text().rpartition(") ")[2].split()
        except OSError:
            continue
        if int(fields[1]) == pid:
            found |= {int(each.parent.name), *_children(int(each.parent.name))}
    return found


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][:1]
    except OSError:
        return "Z"
