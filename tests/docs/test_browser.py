"""The guide in a real browser, opened from its folder."""

from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow


def test_search_works_from_a_folder(browser: Any, site: Path) -> None:
    page = browser.new_page()
    page.goto((site / "start.html").as_uri())
    page.get_by_label("Search").first.press_sequentially("correction_bounds")
    hit = page.locator(".md-search-result__link[href*='#on_policy']").first
    hit.wait_for()
    hit.click()
    page.wait_for_url("**/reference/config.html*")


@pytest.mark.parametrize("name", ["index.html", "concepts/dag.html"])
def test_the_picture_of_the_stages_fits_a_phone(browser: Any, site: Path, name: str) -> None:
    page = browser.new_page(viewport={"width": 390, "height": 844})
    page.goto((site / name).as_uri())
    picture = page.locator(".picture")
    assert picture.evaluate("(element) => element.scrollWidth <= element.clientWidth")
    assert page.evaluate("document.documentElement.scrollWidth") == 390
