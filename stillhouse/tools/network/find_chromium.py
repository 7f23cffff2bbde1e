"""Where a Chromium is installed."""

import shutil
from pathlib import Path
from typing import Any, Final

_SYSTEM_NAMES: Final = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "microsoft-edge")


def system_chromium() -> str | None:
    """Path of the system's Chromium, or of a browser made of it; None where there is none."""
    return next((path for name in _SYSTEM_NAMES if (path := shutil.which(name))), None)


def own_chromium(driver: Any) -> str | None:
    """Path of the browser that `playwright install` has put; None where it has put none.

    Args:
        driver: Playwright, started.
    """
    path = str(driver.chromium.executable_path)
    return path if Path(path).exists() else None


async def is_installed() -> bool:
    """True where one is found, the system's or Playwright's own; starts Playwright only to look for the latter."""
    if system_chromium() is not None:
        return True
    from playwright.async_api import async_playwright

    async with async_playwright() as driver:
        return own_chromium(driver) is not None
