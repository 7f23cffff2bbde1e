"""crawl4ai for `browse`: it visits pages, scrapes them, and writes them as markdown. Importing it takes seconds.

The tests named `test_crawl4ai_still_...` show each of its faults that is worked around here and in `ChromiumFetcher`.
"""

import asyncio
import re
import time
from contextvars import ContextVar
from functools import cache
from typing import Any, Final, Self
from urllib.parse import urljoin

import crawl4ai
from crawl4ai.async_crawler_strategy import AsyncCrawlerStrategy, AsyncCrawlResponse, AsyncPlaywrightCrawlerStrategy
from rich.console import Console

from stillhouse.tools.network.fetching import HTML_TYPES, WebPage

_SILENT: Final = crawl4ai.AsyncLogger(console=Console(quiet=True))
"""crawl4ai prints some warnings and advertisements whatever `verbose` says."""
_BROWSER: Final = crawl4ai.BrowserConfig(text_mode=True)
_OPTIONS: Final = {"body_width": 0, "ignore_images": True, "single_line_break": True, "mark_code": True}
_BASE: Final = re.compile(r"<base\s[^<>]{0,500}?\bhref\s*=\s*[\"']?([^\"'<>\s]+)", re.IGNORECASE)
_SLOW: Final = re.compile(r"<base\b|</head\b", re.IGNORECASE)
_page: ContextVar[WebPage] = ContextVar("page")


def strategy_of(page: Any, timeout_s: float, shown_within_s: float) -> tuple[AsyncPlaywrightCrawlerStrategy, Any]:
    """Return crawl4ai's strategy that crawls in this page of Playwright, and the config for it; the page stays open."""
    strategy = AsyncPlaywrightCrawlerStrategy(_BROWSER, _SILENT)
    config = _visit_config(int(timeout_s * 1000), int(shown_within_s * 1000))
    strategy.browser_manager.sessions[config.session_id] = (page.context, page, time.time())
    return strategy, config


@cache
def _visit_config(goto_ms: int, shown_ms: int) -> Any:
    """Return a config, which takes 30 ms to make."""
    return crawl4ai.CrawlerRunConfig(session_id="visit", page_timeout=goto_ms, body_visibility_timeout=shown_ms)


def to_markdown(page: WebPage, max_characters: int) -> str:
    """Return the page as markdown with absolute links, without images, scripts, styles; takes a second per megabyte.

    Of a page longer than `max_characters` only the main content is returned if that fills half of them, lest menus take
    its place.
    """
    if page.content_type not in HTML_TYPES:
        return page.text
    _page.set(page)
    crawler, config = _crawl4ai()
    # In a loop of its own: it awaits nothing, and would stop the pages of any other.
    result = asyncio.run(crawler.arun(page.url, config))
    if result.markdown is None:
        return ""
    text = result.markdown.raw_markdown.strip()
    if len(text) > max_characters:
        kept = "".join(crawl4ai.PruningContentFilterLXML().filter_content(result.cleaned_html))
        main = config.markdown_generator.generate_markdown(kept, result.redirected_url).raw_markdown.strip()
        text = main if 2 * len(main) >= max_characters else text
    title = (result.metadata.get("title") or "").strip()
    return f"# {title}\n\n{text}" if title and title not in text else str(text)


@cache
def _crawl4ai() -> tuple[Any, Any]:
    markdown = crawl4ai.DefaultMarkdownGenerator(options=_OPTIONS)
    config = crawl4ai.CrawlerRunConfig(markdown_generator=markdown, table_extraction=crawl4ai.NoTableExtraction())
    return crawl4ai.AsyncWebCrawler(crawler_strategy=_Fetched(), logger=_SILENT), config


class _Fetched(AsyncCrawlerStrategy):
    """Gives crawl4ai a page that is fetched already: it would turn a refusal into an excerpt of its source code."""

    async def __aenter__(self) -> Self:
        return self

    async def crawl(self, url: str, **_: Any) -> AsyncCrawlResponse:
        page = _page.get()
        base = _BASE.search(page.text)
        return AsyncCrawlResponse(
            # It looks for <base> and into <head> in quadratic time, and does not resolve a relative base.
            html=_SLOW.sub("<meta", page.text),
            redirected_url=urljoin(page.url, base[1]) if base else page.url,
            response_headers={},
            status_code=200,
            # Otherwise a page of few words counts as one that keeps robots out.
            placeholder_html=True,
        )
