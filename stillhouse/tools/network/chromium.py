"""Chromium on this machine: where one is installed, and how much memory its pages may take."""

import asyncio
import logging
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import psutil

_log = logging.getLogger(__name__)

MAX_RENDERER_BYTES: Final = 1 << 30
"""Memory of one renderer; a large page without images takes a few hundred MB."""
_CHECK_EVERY_S: Final = 0.2
_SYSTEM_NAMES: Final = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "microsoft-edge")


def system_chromium() -> str | None:
    """Return the path of the system's Chromium, or of a browser based on it, if any."""
    return next((path for name in _SYSTEM_NAMES if (path := shutil.which(name))), None)


def own_chromium(driver: Any) -> str | None:
    """Return the path of the browser that `playwright install` installed, if any; `driver` is playwright, started."""
    path = str(driver.chromium.executable_path)
    return path if Path(path).exists() else None


async def is_installed() -> bool:
    """Return whether there is a browser of the system or, which takes starting Playwright, of Playwright."""
    if system_chromium() is not None:
        return True
    from playwright.async_api import async_playwright

    async with async_playwright() as driver:
        return own_chromium(driver) is not None


async def limit_memory(browser: Any) -> None:
    """Kill renderers of Playwright's `browser` that exceed the limit, until cancelled or the browser is gone.

    Chromium has no such limit: a page of a few hundred bytes, compressed more than once, can take 4 GiB before its
    timeout. A page whose renderer is killed fails with "Page crashed"; the others go on.
    """
    from playwright.async_api import Error

    with suppress(Error):
        session = await browser.new_browser_cdp_session()
        while browser.is_connected():
            await asyncio.sleep(_CHECK_EVERY_S)
            processes = (await session.send("SystemInfo.getProcessInfo"))["processInfo"]
            for process in processes:
                if process["type"] != "renderer":
                    continue
                with suppress(psutil.Error):
                    renderer = psutil.Process(int(process["id"]))
                    used = renderer.memory_info().rss
                    if used > MAX_RENDERER_BYTES:
                        _log.warning("browse: a page took %d MiB of memory and was closed", used >> 20)
                        renderer.kill()
