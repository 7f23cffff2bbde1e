"""Keeps a page from taking the machine's memory: its renderer is ended once it holds too much.

Chromium itself sets no such limit: a page of a few hundred bytes, compressed more than once, made one of 4 GiB within
the time a page may take, and eight pages are open at once.
"""

import asyncio
import logging
import os
import signal
from contextlib import suppress
from typing import Any, Final

import psutil

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
