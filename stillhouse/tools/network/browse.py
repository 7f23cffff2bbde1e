"""The built-in `browse`: a web page as markdown.

Pages come from one shared Chromium, or over plain HTTP where there is none or the config says so. `robots.txt` is not
consulted: the tool reads single pages that a model asks for, as a person's browser does, and `Politeness` keeps it from
being a burden to a host.
"""

import asyncio
import logging
from typing import Final

from stillhouse.config import ToolsConfig
from stillhouse.errors import ConfigError
from stillhouse.tools.context import ToolError
from stillhouse.tools.decorator import Tool, tool
from stillhouse.tools.loop_thread import LoopThread
from stillhouse.tools.network.browser_process import is_installed
from stillhouse.tools.network.chromium_fetcher import BrowserUnavailable, ChromiumFetcher
from stillhouse.tools.network.fetching import HttpFetcher, PageFetcher, PageUnavailable, WebPage
from stillhouse.tools.network.guard import AddressRefused, Guard, HostUnknown, host_and_port
from stillhouse.tools.network.markdown import require_crawl4ai, to_markdown
from stillhouse.tools.network.politeness import Politeness

_log = logging.getLogger(__name__)

_LOAD_TIMEOUT_S: Final = 30.0
_MAX_CALLS_AT_ONCE: Final = 32


class Browse:
    """The tool `browse` and what its calls share; nothing is started before the first call.

    Raises:
        ConfigError: crawl4ai is not installed, or `tools.browse_with` asks for a browser and there is none.
    """

    def __init__(self, config: ToolsConfig) -> None:
        require_crawl4ai()
        self._max_characters = config.browse_max_characters
        self._timeout_s = min(_LOAD_TIMEOUT_S, config.timeout_s)
        self._guard = Guard(config.allowed_hosts)
        self._thread = LoopThread("browse")
        self._politeness = Politeness()
        self._pages: PageFetcher | None = None
        self._may_fall_back = config.browse_with == "auto"
        self._with_browser = config.browse_with != "http" and self._finds_chromium()
        if config.browse_with == "browser" and not self._with_browser:
            raise ConfigError(
                "tools.browse_with is browser, but no Chromium is installed: run `playwright install chromium`, "
                "install the system's chromium, or set tools.browse_with to http"
            )
        self.tool: Tool = self._make_tool()

    async def close(self) -> None:
        """Ends the browser; a later call starts another."""
        if self._thread.is_running:
            await self._thread.run(self._close_pages())
            await asyncio.to_thread(self._thread.close)
            # Its locks belong to the loop that ended.
            self._politeness = Politeness()

    def _finds_chromium(self) -> bool:
        found = self._thread.run_blocking(is_installed())
        self._thread.close()
        return found

    def _make_tool(self) -> Tool:
        # Waiting for a place here is not part of a call's time, as waiting for a page or for a host's turn would be.
        @tool(max_concurrency=_MAX_CALLS_AT_ONCE)
        async def browse(url: str) -> str:
            """Reads a web page and returns its text as markdown; a long page is cut. Takes the page's full URL."""
            return await self._thread.run(self._read(url))

        return browse

    async def _read(self, url: str) -> str:
        try:
            page = await self._get(url)
        except (PageUnavailable, BrowserUnavailable, AddressRefused, HostUnknown) as error:
            raise ToolError(str(error)) from error
        # Conversion is work for the processor, up to seconds for a large page.
        text = await asyncio.to_thread(to_markdown, page)
        return cut(text or "(the page has no text)", self._max_characters)

    async def _get(self, url: str) -> WebPage:
        host, port = host_and_port(url)
        if self._guard.allows(host, port):
            return await self._fetch(url)
        async with self._politeness.turn(host):
            return await self._fetch(url)

    async def _fetch(self, url: str) -> WebPage:
        if self._pages is None:
            way = ChromiumFetcher if self._with_browser else HttpFetcher
            self._pages = way(self._guard, self._timeout_s)
        try:
            return await self._pages.get(url)
        except BrowserUnavailable as error:
            if not self._may_fall_back:
                raise
            if self._with_browser:
                _log.warning("browse: %s; pages are fetched without a browser from now on", error)
                self._with_browser = False
                await self._close_pages()
            return await self._fetch(url)

    async def _close_pages(self) -> None:
        pages, self._pages = self._pages, None
        if pages is not None:
            await pages.close()


def cut(text: str, max_characters: int) -> str:
    """The text, or its beginning with a note that says so."""
    if len(text) <= max_characters:
        return text
    note = f"[cut here: these are the first {max_characters} of {len(text)} characters]"
    return f"{text[:max_characters].rstrip()}\n\n{note}"
