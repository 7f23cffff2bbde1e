"""A browser for Prefect's and MLflow's pages."""

import shutil
from collections.abc import Iterator
from typing import Any

import pytest

BROWSER = next((path for name in ("chromium", "google-chrome") if (path := shutil.which(name))), None)


@pytest.fixture(scope="module")
def page() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    if BROWSER is None:
        pytest.skip("no Chromium on this machine: apt-get install chromium")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=BROWSER, args=["--no-sandbox", "--disable-gpu"])
        opened = browser.new_page(viewport={"width": 1300, "height": 1000})
        # A loaded machine draws these pages slowly.
        opened.set_default_timeout(300_000)
        yield opened
        browser.close()
