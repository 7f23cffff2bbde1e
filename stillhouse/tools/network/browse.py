"""The built-in `browse`: a web page as markdown.

Pages come from one shared Chromium, or over plain HTTP if there is none or the config says so. `robots.txt` is not
consulted: the tool reads single pages that a model requests, as a browser does, and `Politeness` limits the load on a
host.
"""

import asyncio
import importlib.util
import logging
import os
import tempfile
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, Final

from stillhouse.config import ToolsConfig
from stillhouse.errors import ConfigError
from stillhouse.tools.context import ToolError
from stillhouse.tools.decorator import Tool, tool
from stillhouse.tools.loop_thread import LoopThread
from stillhouse.tools.network.chromium import is_installed
from stillhouse.tools.network.chromium_fetcher import BrowserUnavailable, ChromiumFetcher
from stillhouse.tools.network.fetching import HTML_TYPES, HttpFetcher, PageUnavailable, WebPage
from stillhouse.tools.network.guard import AddressRefused, Guard, HostUnknown, host_and_port
from stillhouse.tools.network.politeness import Politeness

_log = logging.getLogger(__name__)

_LOAD_TIMEOUT_S: Final = 30.0
_MAX_CALLS_AT_ONCE: Final = 32
_MAX_CHARACTERS: Final = 8000
"""Where a page is cut unless the config says otherwise: every later turn reads it again."""
_OPTIONS: Final = {"body_width": 0, "ignore_images": True, "single_line_break": True, "mark_code": True}


def to_markdown(page: WebPage) -> str:
    """The page as markdown with absolute links, without images, scripts and styles; takes a second per megabyte."""
    if page.content_type not in HTML_TYPES:
        return page.text
    scrape, generate = _crawl4ai()
    scraped = scrape(page.url, page.text)
    cleaned = scraped.cleaned_html if scraped is not None and scraped.success else ""
    text = str(generate(cleaned, base_url=page.url, citations=False).raw_markdown).strip()
    title = (scraped.metadata.get("title") or "").strip() if scraped is not None else ""
    return f"# {title}\n\n{text}" if title and title not in text else text


@cache
def _crawl4ai() -> tuple[Any, Any]:
    # On import crawl4ai makes cache folders, in the home folder by default; its crawler, which uses them, is not used.
    os.environ.setdefault("CRAWL4_AI_BASE_DIRECTORY", str(Path(tempfile.gettempdir(), f"crawl4ai-{os.getuid()}")))
    from crawl4ai.content_scraping_strategy import LXMLWebScrapingStrategy
    from crawl4ai.markdown_generation_strategy import DefaultMarkdownGenerator

    return LXMLWebScrapingStrategy().scrap, DefaultMarkdownGenerator(options=_OPTIONS).generate_markdown


class Browse:
    """The tool `browse` and the resources of its calls, which are started by the first one.

    Raises:
        ConfigError: crawl4ai is not installed, or `tools.browse_with` asks for a browser and there is none.
    """

    def __init__(self, config: ToolsConfig) -> None:
        if importlib.util.find_spec("crawl4ai") is None:
            raise ConfigError(
                "tools.builtin names browse, which needs crawl4ai: run `pip install 'crawl4ai>=0.9,<1'`, or take "
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

        self.tool: Tool = replace(browse, max_characters=config.max_result_characters or _MAX_CHARACTERS)

    async def close(self) -> None:
        """Ends the browser; a later call starts another."""
        if self._thread.is_running:
            await self._thread.run(self._close_fetcher())
            await asyncio.to_thread(self._thread.close)
            # Its locks belong to the loop that ended.
            self._politeness = Politeness()

    async def _read(self, url: str) -> str:
        try:
            page = await self._get(url)
        except (PageUnavailable, BrowserUnavailable, AddressRefused, HostUnknown) as error:
            raise ToolError(str(error)) from error
        # Conversion may take seconds of processor time.
        text = await asyncio.to_thread(to_markdown, page)
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
