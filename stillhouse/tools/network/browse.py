"""The built-in `browse`: a web page as markdown.

Pages come from one shared Chromium, or over plain HTTP if there is none or the config says so. `robots.txt` is not
consulted: the tool reads single pages that a model requests, as a browser does, and `Politeness` limits the load on a
host.
"""

import asyncio
import importlib.util
import logging
from dataclasses import replace
from importlib import import_module
from typing import Final

from stillhouse.config import ToolsConfig
from stillhouse.errors import ConfigError
from stillhouse.processes.loop_thread import LoopThread
from stillhouse.tools.context import ToolError
from stillhouse.tools.decorator import Tool, tool
from stillhouse.tools.network.chromium import is_installed
from stillhouse.tools.network.chromium_fetcher import BrowserUnavailable, ChromiumFetcher
from stillhouse.tools.network.fetching import HttpFetcher, PageUnavailable, WebPage
from stillhouse.tools.network.guard import AddressRefused, Guard, HostUnknown, host_and_port
from stillhouse.tools.network.politeness import Politeness

_log = logging.getLogger(__name__)

_LOAD_TIMEOUT_S: Final = 30.0
_MAX_CALLS_AT_ONCE: Final = 32
_MAX_CHARACTERS: Final = 8000
"""Where a page is cut unless the config says otherwise: every later turn reads it again."""


class Browse:
    """The tool `browse` and the resources of its calls, which are started by the first one.

    Raises ConfigError if crawl4ai is not installed, or `tools.browse_with` asks for a browser and there is none.
    """

    def __init__(self, config: ToolsConfig) -> None:
        if importlib.util.find_spec("crawl4ai") is None:
            raise ConfigError(
                "tools.builtin names browse, which needs crawl4ai: run `pip install 'crawl4ai>=0.9.5,<1'`, or take "
                "browse out of tools.builtin"
            )
        self._timeout_s = min(_LOAD_TIMEOUT_S, config.timeout_s)
        self._guard = Guard(config.allowed_hosts)
        self._thread = LoopThread("browse")
        self._politeness = Politeness()
        self._fetcher: ChromiumFetcher | HttpFetcher | None = None
        self._may_fall_back = config.browse_with == "auto"
        self._with_browser = config.browse_with != "http" and self._thread.run_blocking(is_installed())
        self._thread.close()
        if config.browse_with == "browser" and not self._with_browser:
            raise ConfigError(
                "tools.browse_with is browser, but no Chromium is installed: run `playwright install chromium`, "
                "install the system's chromium, or set tools.browse_with to http",
                code="no-chromium",
            )

        # Waiting for a slot here does not count into the timeout, unlike waiting for a page or a host.
        @tool(max_concurrency=_MAX_CALLS_AT_ONCE)
        async def browse(url: str) -> str:
            """Reads a web page and returns its text as markdown; a long page is cut. Takes the page's full URL."""
            return await self._thread.run(self._read(url))

        self._max_characters = config.max_result_characters or _MAX_CHARACTERS
        self.tool: Tool = replace(browse, max_characters=self._max_characters)

    async def close(self) -> None:
        """End the browser; a later call starts another."""
        if self._thread.is_running:
            await self._thread.run(self._close_fetcher())
            await asyncio.to_thread(self._thread.close)
            # Its locks belong to the loop that ended.
            self._politeness = Politeness()

    async def _read(self, url: str) -> str:
        # crawl4ai takes seconds to import, and to convert a page, during which no other page shall wait.
        crawling = await asyncio.to_thread(import_module, "stillhouse.tools.network.crawling")
        try:
            page = await self._get(url)
        except (PageUnavailable, BrowserUnavailable, AddressRefused, HostUnknown) as error:
            raise ToolError(str(error)) from error
        text = await asyncio.to_thread(crawling.to_markdown, page, self._max_characters)
        return text or "(the page has no text)"

    async def _get(self, url: str) -> WebPage:
        host, port = host_and_port(url)
        if self._guard.allows(host, port):
            return await self._fetch(url)
        async with self._politeness.turn(host):
            return await self._fetch(url)

    async def _fetch(self, url: str) -> WebPage:
        if self._fetcher is None:
            fetcher = ChromiumFetcher if self._with_browser else HttpFetcher
            self._fetcher = fetcher(self._guard, self._timeout_s)
        try:
            return await self._fetcher.get(url)
        except BrowserUnavailable as error:
            if not self._may_fall_back:
                raise
            if self._with_browser:
                _log.warning("browse: %s; pages are fetched without a browser from now on", error)
                self._with_browser = False
                await self._close_fetcher()
            return await self._fetch(url)

    async def _close_fetcher(self) -> None:
        fetcher, self._fetcher = self._fetcher, None
        if fetcher is not None:
            await fetcher.close()
