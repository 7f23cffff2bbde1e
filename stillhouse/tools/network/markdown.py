"""Pages as markdown, by crawl4ai: its scraper cleans the HTML, its generator writes the text."""

import importlib.util
import os
import tempfile
from functools import cache
from pathlib import Path
from typing import Any, Final

from stillhouse.errors import ConfigError
from stillhouse.tools.network.fetching import WebPage

_OPTIONS: Final = {"body_width": 0, "ignore_images": True, "single_line_break": True, "mark_code": True}


def require_crawl4ai() -> None:
    """Raises ConfigError if crawl4ai is not installed."""
    if importlib.util.find_spec("crawl4ai") is None:
        raise ConfigError(
            "tools.builtin names browse, which needs crawl4ai: run `pip install 'crawl4ai>=0.9,<1'`, or take browse "
            "out of tools.builtin"
        )


def to_markdown(page: WebPage) -> str:
    """The page as markdown with absolute links, without images, scripts and styles; takes a second per megabyte."""
    if not page.is_html:
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
