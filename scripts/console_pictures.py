"""Takes the pictures of docs/console.md: every page, wide and light, narrow and dark, of a living campus.

.venv/bin/python scripts/console_pictures.py [FOLDER]
"""

from __future__ import annotations

import io
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, expect, sync_playwright

from kaicep.processes import bound

FOLDER = Path(__file__).parent.parent / "docs" / "pictures" / "console"
MOST = 150_000
SETTLED = 40.0
QUERY = """\
# A meeting room above 500, whatever its vendor calls that.
SELECT ?room, ?e.hvc:airflow AS flow
FROM (?e, airflowReport)
WHERE
  FILTER (?e.hvc:airflow > 500)
  PATH {?e evt:hasSource ?sensor .
        ?sensor bd:hasLocation ?room .
        ?room rdf:type """


def main(folder: Path) -> None:
    """Makes all pictures."""
    folder.mkdir(parents=True, exist_ok=True)
    chromium = next(found for each in ("chromium", "google-chrome") if (found := shutil.which(each)))
    with tempfile.TemporaryDirectory() as made:
        command = [
            sys.executable,
            "-m",
            "kaicep",
            "demo",
            "--console",
            "--scale",
            "small",
            "--keep",
            f"{made}/c",
        ]
        demo = subprocess.Popen(bound(command), stdout=subprocess.PIPE, text=True)
        try:
            assert demo.stdout is not None
            url = next(line.split()[-1] for line in demo.stdout if "http" in line)
            with sync_playwright() as playwright:
                browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
                for width, height, scheme in ((1280, 900, "light"), (390, 844, "dark")):
                    context = browser.new_context(
                        viewport={"width": width, "height": height}, color_scheme=scheme, locale="en-US"
                    )
                    page = context.new_page()
                    page.set_default_timeout(120_000)
                    expect.set_options(timeout=120_000)
                    walk(page, url.removesuffix("/console"), folder, width, height)
                    context.close()
                browser.close()
        finally:
            demo.terminate()
            demo.wait(60)


def walk(page: Page, url: str, folder: Path, width: int, height: int) -> None:
    """All pages at one width."""

    def shoot(name: str) -> None:
        page.mouse.move(5, height - 5)
        assert page.evaluate("document.documentElement.scrollWidth") <= width, name
        image = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
        path = folder / f"{name}-{width}.png"
        image.quantize(128, dither=Image.Dither.NONE).save(path, optimize=True)
        assert path.stat().st_size < MOST, f"{path} is too large"
        print(f"{path.name}: {path.stat().st_size // 1000} kB")

    page.goto(f"{url}/console")
    expect(page.locator("#queries .badge.live")).to_have_count(13)
    time.sleep(SETTLED)
    shoot("overview")
    page.goto(f"{url}/console/matches")
    expect(page.locator("#rows tr").first).to_be_visible()
    shoot("matches")
    page.goto(f"{url}/console/matches?query=query7")
    page.locator("#rows a").first.click()
    expect(page.locator(".timeline")).to_be_visible()
    shoot("story")
    page.goto(f"{url}/console/why?query=query7&low=2012-05-07T09:00Z&high=2012-05-07T09:20Z")
    expect(page.locator("main")).to_contain_text("needs >")
    shoot("why")
    page.goto(f"{url}/console/workbench")
    page.locator(".cm-content").click()
    page.keyboard.press("Control+A")
    page.keyboard.insert_text(QUERY)
    page.keyboard.type("meet")
    expect(page.locator(".cm-tooltip-autocomplete li").first).to_contain_text("bd:MeetingRoom")
    shoot("workbench")
    page.wait_for_timeout(200)
    page.keyboard.press("Enter")
    page.keyboard.insert_text("}")
    page.get_by_label("From (UTC)").fill("2012-05-07T08:00Z")
    page.get_by_role("button", name="Try", exact=True).click()
    expect(page.locator("#outcome")).to_contain_text("matches")
    page.locator("#outcome").scroll_into_view_if_needed()
    page.locator("#outcome").evaluate("each => each.scrollIntoView()")
    shoot("try")
    page.goto(f"{url}/console/knowledge?text=meeting")
    shoot("knowledge")
    page.goto(f"{url}/console/knowledge/entity?iri=http%3A%2F%2Fcei.usc.edu%2FBuilding.owl%23RTH112")
    page.get_by_label("Remove (Turtle)").fill("ee:RTH112VOL bd:hasLocation bd:RTH112 .")
    page.get_by_label("Add (Turtle)").fill("ee:RTH112VOL bd:hasLocation bd:RTH105 .")
    shoot("entity")
    page.get_by_role("button", name="See what it would change").click()
    expect(page.locator("#proposed")).to_contain_text("It would add: 1")
    page.locator("#change").evaluate("each => each.scrollIntoView()")
    shoot("change")
    page.goto(f"{url}/console/data?stream=airflowReport&condition=%3Fe.flowrate+%3E+500")
    shoot("data")
    page.goto(f"{url}/console/plan?query=query7")
    page.locator(".plan").first.evaluate("each => each.parentElement.scrollIntoView()")
    shoot("plan")
    page.goto(f"{url}/console/log")
    shoot("log")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER)
