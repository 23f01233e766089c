"""A control-room engineer's walk through the console, in a real browser."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect
from tests.console.browser import browser
from tests.console.campus import FULL, HOSTILE, KEPT, READ, Alive, alive
from tests.servers import free_port

from kaicep.console.pages import _flow_values
from kaicep.deployment.config import load_config
from kaicep.deployment.running import Deployment
from kaicep.server.service import Service

__all__ = ["browser"]

pytestmark = [pytest.mark.servers, pytest.mark.slow]
PATIENCE = 90_000
MINE = """SELECT ?e.sensorID, ?e.hvc:airflow AS flow
FROM (?e, airflowReport)
FILTER (?e.hvc:airflow > 500)
PATH {?e evt:hasSource ?s . ?s bd:hasLocation ?room . ?room rdf:type """


@pytest.fixture(scope="module")
def campus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Alive]:
    with alive(tmp_path_factory.mktemp("campus")) as made:
        yield made


@pytest.fixture(scope="module")
def context(browser: Browser, campus: Alive) -> Iterator[BrowserContext]:
    made = browser.new_context(base_url=campus.url, viewport={"width": 1280, "height": 900})
    made.set_default_timeout(PATIENCE)
    made.set_default_navigation_timeout(PATIENCE)
    expect.set_options(timeout=PATIENCE)
    yield made
    made.close()


@pytest.fixture(scope="module")
def page(context: BrowserContext, campus: Alive) -> Page:
    """Somebody who came in with the full token; whatever a page asks for is noted."""
    made = context.new_page()
    made.asked = []  # type: ignore[attr-defined]
    made.wrong = []  # type: ignore[attr-defined]
    made.on("request", lambda request: made.asked.append(request.url))  # type: ignore[attr-defined]
    made.on("pageerror", lambda error: made.wrong.append(str(error)))  # type: ignore[attr-defined]
    made.goto("/")
    made.get_by_label("Token").fill("not this one")
    made.get_by_role("button", name="Log in").click()
    expect(made.get_by_role("alert")).to_contain_text("Wrong token")
    made.get_by_label("Token").fill(FULL)
    made.get_by_role("button", name="Log in").click()
    expect(made.get_by_role("heading", name="Overview")).to_be_visible()
    return made


def story_of_the_newest(page: Page, query: str) -> None:
    page.goto(f"/console/matches?query={query}")
    page.locator("#rows a").first.click()


def test_the_overview_is_live(page: Page, campus: Alive) -> None:
    cookies = {each["name"]: each for each in page.context.cookies()}
    assert cookies["kaicep"]["httpOnly"]
    assert cookies["kaicep"]["sameSite"] == "Strict"
    page.goto("/console")
    expect(page.locator("[data-connection].connection")).to_have_text("live")
    for name in KEPT:
        expect(page.locator("#queries tr", has_text=name).locator(".badge.live")).to_be_visible()


def test_a_match_appears_without_reloading_and_tells_its_story(page: Page, campus: Alive) -> None:
    page.goto("/console/matches?query=query7")
    page.evaluate("window.here = true")
    expect(page.locator(".connection")).to_have_text("live")
    campus.surge("EEB110VOL")
    row = page.locator("#rows tr", has_text="EEB110VOL").first
    expect(row).to_be_visible()
    assert page.evaluate("window.here") is True
    row.get_by_role("link").click()
    things = page.locator(".where")
    expect(things).to_contain_text("EEB110")
    expect(things).to_contain_text("department")
    expect(page.locator(".timeline .dot")).to_have_count(2)
    expect(page.locator("main")).to_contain_text("600.0 - 520.0 = 80.0 > 50.0")
    expect(page.locator("main")).to_contain_text("EEB110 is a meeting room")


def test_matches_of_the_past_come_from_files_and_tables(page: Page, campus: Alive) -> None:
    campus.surge("EEB110VOL")

    def shown(address: str, wanted: str) -> list[str]:
        """The times of the past matches, once there is a certain one."""
        page.goto(f"/console/matches?past=yes&{address}")
        while wanted not in page.locator("main").inner_text():
            page.reload()
        return [each.get_attribute("datetime") or "" for each in page.locator("#rows td > a time").all()]

    assert all(shown("query=query7&low=2012-05-07T08:20Z", "EEB110VOL"))
    early = shown("query=query1&high=2012-05-07T08:10Z", "query1")
    late = shown("query=query1&low=2012-05-07T08:10:00.000001Z", "EEB110VOL")
    assert early == sorted(early, reverse=True)
    assert early[0] <= "2012-05-07T08:10:00" < late[-1]
    shown("query=query1&low=2013-01-01T00:00Z", "No match fits")
    shown("low=noon", "noon is not a time")


def test_a_query_is_written_tried_and_registered(page: Page, campus: Alive) -> None:
    campus.surge("EEB110VOL")
    page.goto("/console/workbench")
    editor = page.locator(".cm-content")
    editor.click()
    page.keyboard.press("Control+A")
    page.keyboard.insert_text("SELECT ?e.flowrat FROM (?e, airflowReport)")
    expect(page.locator(".cm-lintRange-error")).to_have_text("?e.flowrat")
    expect(page.locator("#problems")).to_contain_text("did you mean flowrate?")
    page.keyboard.press("Control+A")
    page.keyboard.insert_text(MINE)
    page.keyboard.type("meeting")
    expect(page.locator(".cm-tooltip-autocomplete li").first).to_contain_text("bd:MeetingRoom")
    page.wait_for_timeout(150)  # the editor takes no Enter at first, lest it was meant for a new line
    page.keyboard.press("Enter")
    expect(editor).to_contain_text("rdf:type bd:MeetingRoom")
    page.keyboard.insert_text("}")
    expect(page.locator("#problems li.error")).to_have_count(0)
    page.get_by_label("From (UTC)").fill("2012-05-07T08:00Z")
    page.get_by_label("To (UTC)").fill("2012-05-07T09:30Z")
    page.get_by_role("button", name="Try", exact=True).click()
    expect(page.locator("#outcome")).to_contain_text("EEB110VOL")
    expect(page.locator("#beside svg")).to_be_visible()
    expect(page.locator("#beside")).to_contain_text("relate paths")
    page.get_by_role("button", name="Plan details", exact=True).click()
    expect(page.locator("#outcome")).to_contain_text("How each host would run it")
    page.get_by_label("Name").fill("mine")
    page.get_by_role("button", name="Register", exact=True).click()
    expect(page.locator("#registered")).to_contain_text("mine is registered")
    page.get_by_role("link", name="Its matches").click()
    campus.report("RTH110VOL", 610.0)
    expect(page.locator("#rows")).to_contain_text("RTH110VOL")
    page.goto("/console/log")
    expect(page.locator("main")).to_contain_text("registered mine")


def test_a_path_to_a_department_is_suggested(page: Page, campus: Alive) -> None:
    page.goto("/console/workbench")
    page.get_by_label("From stream").select_option("airflowReport")
    page.get_by_label("To", exact=True).fill("department")
    page.get_by_role("button", name="Suggest").click()
    expect(page.locator("#paths")).to_contain_text("bd:hasLocation")
    expect(page.locator("#paths")).to_contain_text("leads somewhere for")
    page.locator("#paths .note", has_text="bd:hasLocation").get_by_role("button", name="Insert").click()
    expect(page.locator(".cm-content")).to_contain_text("PATH {?e evt:hasSource")
    expect(page.locator("#problems li.error")).to_have_count(0)


def test_a_plan_shows_what_flows_and_how_it_runs(page: Page, campus: Alive) -> None:
    page.goto("/console/plan?query=query7")
    expect(page.locator(".connection")).to_have_text("live")
    scan = page.locator("#flow .count", has_text=" of ").first
    before = scan.text_content()
    campus.report("EEB110VOL", 100.0)
    expect(scan).not_to_have_text(before or "")
    expect(page.locator(".physical h2", has_text="In process")).to_contain_text("in use")
    expect(page.locator(".physical h2", has_text="On Spark")).to_be_visible()
    expect(page.locator(".physical svg").first).to_contain_text("Source airflowReport")


def test_the_plan_of_a_query_on_spark_has_no_figure_of_what_is_kept() -> None:
    """On Spark nobody counts that, and its row says None."""
    rows = {"q": {"state": "live", "matches": 7, "held": None}}
    status = {"engine": {"kind": "spark"}, "streams": {}, "queries": rows}
    config = SimpleNamespace(sinks={}, streams={})
    pages = SimpleNamespace(board=SimpleNamespace(queries=rows, rates={}, status=status, config=config))
    card = {"operator": "Project", "inputs": [{"operator": "Pattern", "inputs": [{"operator": "Scan"}]}]}
    found = {"optimised": card, "physical": {"spark": "in parallel by key"}, "streams": []}
    wide, narrow = _flow_values(pages, "q", found)["optimised"]  # type: ignore[arg-type]
    assert [each["count"] for each in wide.edges] == ["7 matches, 0/s", ""]
    assert [each["count"] for each in narrow.edges] == ["7 matches, 0/s", ""]


def test_why_nothing_matched_is_a_number(page: Page, campus: Alive) -> None:
    campus.report("OHE110VOL", 520.0)
    campus.report("OHE110VOL", 560.0)
    page.goto("/console/data?stream=airflowReport&key=OHE110VOL&condition=%3Fe.flowrate+%3E+540")
    while "560" not in page.locator("main").inner_text():
        page.reload()
    page.goto("/console/why?query=query7&low=2012-05-07T08:20Z&high=2012-05-07T08:40Z&key=OHE110VOL")
    expect(page.locator("main")).to_contain_text("560.0 - 520.0 = 40.0, needs > 50.0")
    expect(page.locator("main")).to_contain_text("short by 20%")
    tests = page.locator(".funnel", has_text="?e1.flowrate > 500")
    expect(tests.locator("tr", has_text="?e1.flowrate > 500").locator("td").nth(3)).to_have_text("2")
    expect(page.locator("main")).to_contain_text("broken by an event that must be absent")


def test_a_moved_sensor_changes_the_next_match(page: Page, campus: Alive) -> None:
    made = page.request.post(
        f"{campus.url}/queries/moved?language=chi-cep",
        data=f"{MINE}bd:MeetingRoom}}",
        headers={"Authorization": f"Bearer {FULL}"},
    )
    assert made.status == 201, made.text()
    version = campus.deployment.status()["knowledge"]["version"]
    page.goto("/console/knowledge?text=faculty office")
    expect(page.locator("main")).to_contain_text("bd:FacultyOffice")
    page.get_by_label("Remove (Turtle)").fill("ee:RTH105VOL bd:hasLocation bd:RTH105 .")
    page.get_by_label("Add (Turtle)").fill("ee:RTH105VOL bd:hasLocation bd:OHE110 .")
    page.get_by_role("button", name="See what it would change").click()
    expect(page.locator("#proposed")).to_contain_text("It would add: 1")
    expect(page.locator("#proposed")).to_contain_text("query7")
    page.get_by_role("button", name="Apply").click()
    expect(page.locator("#proposed")).to_contain_text("Saved as")
    page.goto("/console/knowledge")
    while f"version {version + 1}" not in page.locator("main").inner_text():
        page.reload()
    page.goto("/console/matches?query=moved")
    campus.report("RTH105VOL", 640.0)
    expect(page.locator("#rows")).to_contain_text("RTH105VOL")
    story_of_the_newest(page, "moved")
    expect(page.locator(".where")).to_contain_text("OHE110")


def test_a_change_counts_from_a_time_on(page: Page, campus: Alive) -> None:
    page.goto("/console/knowledge")
    page.get_by_label("Remove (Turtle)").fill("ee:OHE110VOL bd:hasLocation bd:OHE110 .")
    page.get_by_label("Add (Turtle)").fill("ee:OHE110VOL bd:hasLocation bd:RTH105 .")
    page.get_by_label("Valid from").fill("2012-05-07T23:00Z")
    page.get_by_role("button", name="See what it would change").click()
    expect(page.locator("#proposed")).to_contain_text("It would remove: 1")
    page.get_by_role("button", name="Apply").click()
    expect(page.locator("#proposed")).to_contain_text("Saved as")
    address = "/console/knowledge/entity?iri=http%3A%2F%2Fcei.usc.edu%2FEquipment.owl%23OHE110VOL"
    page.goto(address)
    while "from " not in page.locator("main table").first.inner_text():
        page.goto(address)
    rows = page.locator("main table").first.locator("tr", has_text="has location")
    expect(rows.filter(has_text="OHE110").first).to_contain_text("until")
    expect(rows.filter(has_text="RTH105").first).to_contain_text("from")
    page.goto("/console/log")
    expect(page.locator("main")).to_contain_text("changed the knowledge")


def test_mistakes_are_shown_beside_what_was_written(page: Page, campus: Alive) -> None:
    page.goto("/console/data?stream=airflowReport&condition=flowrate+over+500")
    expect(page.get_by_role("alert")).to_contain_text("How to fix it")
    expect(page.get_by_label("Condition on ?e")).to_have_value("flowrate over 500")
    page.goto("/console/why?query=query7&low=yesterday&high=2012-05-07T09:00Z")
    expect(page.get_by_role("alert")).to_contain_text("yesterday is not a time")
    expect(page.get_by_label("From (UTC)")).to_have_value("yesterday")
    page.goto("/console/matches?entity=atlantis")
    expect(page.get_by_role("alert")).to_contain_text("atlantis")
    page.goto("/console/matches/abcdef")
    expect(page.locator("main")).to_contain_text("no match of campus has the id abcdef")
    page.goto("/console/nowhere")
    expect(page.locator("main")).to_contain_text("no such page")


def test_a_deployment_without_queries_says_what_to_do(context: BrowserContext, tmp_path: Path) -> None:
    page = context.new_page()
    (tmp_path / "queries").mkdir()
    toml = '[streams.s]\ntypes = {x = "int64"}\nsource = {kind = "files", path = "s.jsonl", follow = true}\n'
    (tmp_path / "kaicep.toml").write_text(f'name = "bare"\nlisten = "127.0.0.1:{free_port()}"\n{toml}')
    (tmp_path / "s.jsonl").write_text("")
    deployment = Deployment(load_config(tmp_path / "kaicep.toml"))
    with Service(deployment) as service:
        thread = threading.Thread(target=deployment.run)
        thread.start()
        try:
            for path, said in (
                ("", "No queries yet"),
                ("/matches", "No matches yet"),
                ("/matches?past=yes", "No sink writes where this page can read"),
                ("/matches/abcdef", "no match of bare has the id abcdef"),
                ("/why", "No queries yet"),
                ("/knowledge", "No knowledge yet"),
                ("/data", "s has no events yet"),
                ("/plan", "No queries yet"),
                ("/log", "No changes yet"),
            ):
                page.goto(f"{service.url}/console{path}")
                expect(page.locator("main")).to_contain_text(said)
                expect(page.locator("#rows:visible")).to_have_count(0)
        finally:
            page.close()
            deployment.stop()
            thread.join()


def test_times_are_the_readers_with_utc_on_hover(browser: Browser, campus: Alive) -> None:
    context = browser.new_context(base_url=campus.url, timezone_id="Asia/Tokyo", locale="en-GB")
    page = context.new_page()
    page.goto("/console/login?next=/console/matches%3Fquery=query7")
    page.get_by_label("Token").fill(READ)
    page.get_by_role("button", name="Log in").click()
    campus.surge("EEB110VOL")
    shown = page.locator("#rows tr", has_text="EEB110VOL").first.locator("time")
    expect(shown).to_contain_text("17:")
    assert "2012-05-07 08:" in (shown.get_attribute("title") or "")
    assert (shown.get_attribute("title") or "").endswith("UTC")
    context.close()


def test_a_hostile_label_is_shown_and_does_not_run(page: Page, campus: Alive) -> None:
    for path in (
        "/console/knowledge/entity?iri=http%3A%2F%2Fcei.usc.edu%2FBuilding.owl%23RTH110",
        "/console/knowledge?text=onerror",
        "/console/matches?text=%3Cscript%3Ewindow.hacked%3D1%3C%2Fscript%3E",
    ):
        page.goto(path)
        assert page.evaluate("window.hacked") is None
        expect(page.locator("main img, main script")).to_have_count(0)
    page.goto("/console/knowledge?text=onerror")
    expect(page.locator("main")).to_contain_text("<img src=x")
    text = "SELECT ?e.sensorID, ?e.ts FROM (?e, airflowReport) FILTER (?e.flowrate > 900)"
    assert page.request.post("/queries/loud", data=text).ok
    page.goto("/console/matches?query=loud")
    expect(page.locator(".connection")).to_have_text("live")
    campus.report(HOSTILE, 950.0)
    expect(page.locator("#rows")).to_contain_text("<img src=x")
    page.locator("#rows a").first.click()
    expect(page.locator(".timeline")).to_contain_text("950")
    expect(page.locator("dl.facts time")).to_have_attribute("title", re.compile("^2012-05-07 08:.* UTC$"))
    expect(page.locator("main")).to_contain_text("<script>window.hacked=1")
    expect(page.locator("main img, main script")).to_have_count(0)
    page.goto("/console/workbench")
    page.locator(".cm-content").click()
    page.keyboard.press("Control+A")
    page.keyboard.insert_text(MINE.replace("?room rdf:type ", "?room bd:partOf "))
    page.keyboard.type("img")
    expect(page.locator(".cm-tooltip-autocomplete li").first).to_contain_text("<img src=x")
    expect(page.locator("main img, main script")).to_have_count(0)
    assert page.evaluate("window.hacked") is None
    assert page.request.delete("/queries/loud").ok


def test_whoever_may_only_look_cannot_register(browser: Browser, campus: Alive) -> None:
    context = browser.new_context(base_url=campus.url)
    page = context.new_page()
    page.goto("/console/login")
    page.get_by_label("Token").fill(READ)
    page.get_by_role("button", name="Log in").click()
    page.goto("/console/workbench", timeout=PATIENCE)
    expect(page.locator("main")).to_contain_text("read-only")
    expect(page.get_by_role("button", name="Register", exact=True)).to_have_count(0)
    for path in ("/console/workbench/register", "/console/workbench/remove", "/console/knowledge/apply"):
        said = context.request.post(path, form={"name": "sly", "language": "chi-cep", "text": "SELECT ?e.x"})
        assert said.status == 403
    assert context.request.post("/queries/sly", data="SELECT ?e.x").status == 403
    assert "sly" not in context.request.get("/queries").json()
    context.close()


def test_overview_and_matches_are_readable_without_scripts(browser: Browser, campus: Alive) -> None:
    context = browser.new_context(base_url=campus.url, java_script_enabled=False)
    page = context.new_page()
    page.goto("/console/login")
    page.get_by_label("Token").fill(READ)
    page.get_by_role("button", name="Log in").click()
    expect(page.locator("#queries")).to_contain_text("query7")
    expect(page.locator("#streams")).to_contain_text("airflowReport")
    campus.surge("EEB110VOL")
    page.goto("/console/matches?query=query7")
    while "EEB110VOL" not in page.locator("#rows").inner_text():
        page.reload()
    context.close()


def test_it_is_worked_by_keyboard(page: Page, campus: Alive) -> None:
    page.goto("/console")
    page.keyboard.press("g")
    page.keyboard.press("k")
    expect(page.get_by_role("heading", name="Knowledge", exact=True)).to_be_visible()
    page.keyboard.press("/")
    page.keyboard.type("meeting")
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_contain_text("bd:MeetingRoom")
    page.keyboard.press("?")
    expect(page.locator("#keys")).to_be_visible()


def test_nothing_came_from_elsewhere_and_nothing_broke(page: Page, campus: Alive) -> None:
    own = (campus.url, "data:")
    assert all(each.startswith(own) for each in page.asked)  # type: ignore[attr-defined]
    assert page.wrong == []  # type: ignore[attr-defined]


def test_the_overview_is_painted_from_few_files_of_its_own(browser: Browser, campus: Alive) -> None:
    context = browser.new_context(base_url=campus.url)
    page = context.new_page()
    page.goto("/console/login")
    page.get_by_label("Token").fill(READ)
    page.get_by_role("button", name="Log in").click()
    expect(page.locator("#queries")).to_contain_text("query7")
    page.reload()
    loaded = page.evaluate(
        "performance.getEntriesByType('resource').map(each => new URL(each.name).pathname)"
    )
    assert {each.rsplit("/", 1)[-1] for each in loaded} <= {
        "console.css",
        "console.js",
        "icon.svg",
        "overview",
    }
    answer = context.request.get("/console")
    policy = dict(each.strip().split(" ", 1) for each in answer.headers["content-security-policy"].split(";"))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == "'self'"
    assert "<script>" not in answer.text()
    first = "performance.getEntriesByName('first-contentful-paint').map(each => each.startTime)"
    while not (painted := page.evaluate(first)):  # the page's policy lets nobody wait inside of it
        page.wait_for_timeout(20)
    print(f"first paint of the overview after {painted[0]:.0f} ms")
    context.close()


def test_no_page_is_wider_than_the_window(page: Page, campus: Alive, tmp_path: Path) -> None:
    for width in (1280, 390):
        page.set_viewport_size({"width": width, "height": 844})
        for path in ("", "/matches", "/why", "/workbench", "/knowledge", "/data", "/plan", "/log"):
            page.goto(f"/console{path}")
            assert page.evaluate("document.documentElement.scrollWidth") <= width, path


def test_a_page_says_that_it_lost_its_connection_and_reconnects(page: Page, campus: Alive) -> None:
    page.goto("/console")
    expect(page.locator(".connection")).to_have_text("live")
    page.evaluate("window.here = true")
    with campus.unreachable():
        expect(page.locator(".connection")).to_contain_text("reconnecting")
        said = page.locator(".card.live > h2").first.evaluate(
            "each => getComputedStyle(each, '::after').content"
        )
        assert "connection lost" in said
    expect(page.locator(".connection")).to_have_text("live")
    assert page.evaluate("window.here") is True
    expect(page.locator("#queries")).to_contain_text("query7")
    assert page.wrong == []  # type: ignore[attr-defined]
