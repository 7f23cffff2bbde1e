"""The page in a real browser, on a wide screen and on a telephone."""

from pathlib import Path
from typing import Any

import pytest

from stillhouse.dataset.report.origin import Origin
from stillhouse.dataset.report.page import REPORT_FILE, write_report
from stillhouse.dataset.report.summary import summarise

pytestmark = pytest.mark.slow


def opened(browser: Any, folder: Path, width: int, scheme: str) -> tuple[Any, list[str]]:
    """The page, and what its console says from now on."""
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    console: list[str] = []
    page.on("console", lambda message: console.append(message.text))
    page.on("request", lambda request: console.append(request.url) if "report.html" not in request.url else None)
    page.goto((folder / REPORT_FILE).as_uri())
    return page, console


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1400, 390])
def test_the_page_fits_its_screen_and_asks_for_nothing(
    browser: Any, realistic: Path, origin: Origin, width: int, scheme: str
) -> None:
    write_report(realistic, summarise(realistic, num_repeated=12), origin)
    page, console = opened(browser, realistic, width, scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.evaluate("document.querySelectorAll('details').forEach((details) => { details.open = true; })")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.locator("#dropped .messages").first.is_visible()
    assert console == []


def test_hostile_rows_stay_in_their_place(browser: Any, data: Any, origin: Origin) -> None:
    attack = "\u202e<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">" + "W" * 5000
    messages = [{"role": "user", "content": attack}, {"role": "assistant", "content": attack}]
    folder = data.write([data.kept(1, messages=messages, tag=attack, teacher=attack, verified=True)])
    write_report(folder, summarise(folder, num_repeated=0), origin)
    page, console = opened(browser, folder, 390, "light")
    page.locator("#kept .row > summary").click()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert page.title().startswith("1 row from")
    assert console == []
