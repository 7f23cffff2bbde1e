"""Where a Chromium is installed."""

import asyncio
import logging
import os
import shutil
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import psutil

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


_log = logging.getLogger(__name__)

MAX_RENDERER_BYTES: Final = 1 << 30
"""Memory of one renderer; without images a large page takes a few hundred MB."""
_LOOK_EVERY_S: Final = 0.2


async def limit_memory(browser: Any) -> None:
    """Ends renderers of Playwright's `browser` that hold too much, until it is cancelled or the browser is gone.

    The page that loses its renderer fails with "Page crashed"; the others go on.
    """
    from playwright.async_api import Error

    with suppress(Error):
        session = await browser.new_browser_cdp_session()
        while browser.is_connected():
            await asyncio.sleep(_LOOK_EVERY_S)
            processes = (await session.send("SystemInfo.getProcessInfo"))["processInfo"]
            for process in processes:
                if process["type"] == "renderer":
                    _end_if_large(int(process["id"]))


def _end_if_large(pid: int) -> None:
    with suppress(psutil.Error, ProcessLookupError):
        used = psutil.Process(pid).memory_info().rss
        if used > MAX_RENDERER_BYTES:
            _log.warning("browse: a page took %d MiB of memory and was closed", used >> 20)
            os.kill(pid, signal.SIGKILL)
