"""Faults of crawl4ai 0.9.5 that `browse` works around: a test that fails here says what may go."""

import asyncio
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from crawl4ai import AsyncLogger, AsyncWebCrawler, BrowserConfig, CrawlerRunConfig
from crawl4ai.async_crawler_strategy import AsyncHTTPCrawlerStrategy
from crawl4ai.browser_manager import ManagedBrowser
from crawl4ai.utils import compute_head_fingerprint
from rich.console import Console

from stillhouse.tools.network.chromium import system_chromium
from tests.waiting import until

SILENT = AsyncLogger(console=Console(quiet=True))


@contextmanager
def a_chromium(profile: Path) -> Iterator[str]:
    """Yield the address of a Chromium with a debugging port, as crawl4ai connects to it by itself."""
    path = system_chromium()
    if path is None:
        pytest.skip("no Chromium on this machine: apt-get install chromium")
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0", f"--user-data-dir={profile}"]
    with subprocess.Popen([path, *flags, "about:blank"], stderr=subprocess.DEVNULL) as chromium:
        port = profile / "DevToolsActivePort"
        assert until(lambda: port.exists() and len(port.read_text().splitlines()) == 2)
        yield f"http://127.0.0.1:{port.read_text().splitlines()[0]}"
        chromium.terminate()


@pytest.fixture(scope="module")
def cdp_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with a_chromium(tmp_path_factory.mktemp("profile")) as url:
        yield url


def crawl(
    cdp_url: str, *urls: str, each: Callable[[AsyncWebCrawler], Any] = lambda _: None, **options: Any
) -> list[Any]:
    """Return crawl4ai's results of pages, one after the other, with what `each` says of the crawler after them."""

    async def work() -> list[Any]:
        browser = BrowserConfig(cdp_url=cdp_url, create_isolated_context=True, verbose=False)
        async with AsyncWebCrawler(config=browser, logger=SILENT) as crawler:
            results = [await crawler.arun(url, CrawlerRunConfig(**options)) for url in urls]
            return [*results, each(crawler)]

    return asyncio.run(work())


def seconds(work: Callable[[str], Any], text: str) -> float:
    started = time.process_time()
    work(text)
    return time.process_time() - started


def process(html: str, url: str = "http://example.org/a/") -> Any:
    """Return what crawl4ai makes of a fetched page, computed by the first step of its coroutine."""
    crawler = AsyncWebCrawler(crawler_strategy=AsyncHTTPCrawlerStrategy(), logger=SILENT)
    scraped = crawler.aprocess_html(url, html, None, CrawlerRunConfig(), None, None, False, redirected_url=url)
    with pytest.raises(StopIteration) as stopped:
        scraped.send(None)
    return stopped.value.value


def test_crawl4ai_still_scrapes_on_the_event_loop() -> None:
    assert "hello" in process("<p>hello</p>").markdown.raw_markdown


def test_crawl4ai_still_takes_a_relative_base_as_it_is() -> None:
    html = "<html><head><base href='/docs/'></head><body><a href='list'>list</a></body></html>"
    assert "(/docs/list)" in process(html).markdown.raw_markdown


@pytest.mark.slow
@pytest.mark.parametrize(("work", "piece"), [(process, "<base x"), (compute_head_fingerprint, "<meta ")])
def test_crawl4ai_still_takes_quadratic_time(work: Callable[[str], Any], piece: str) -> None:
    few, many = (f"<html><head><script>{piece * count}</script></head></html>" for count in (2000, 8000))
    work("<html></html>")
    assert seconds(work, many) > 7 * seconds(work, few)


def test_crawl4ai_still_starts_chromium_without_its_sandbox_and_takes_no_path_of_it() -> None:
    assert "--no-sandbox" in ManagedBrowser.build_browser_flags(BrowserConfig())
    assert not [name for name in BrowserConfig().to_dict() if "executable" in name]


@pytest.mark.slow
def test_crawl4ai_still_gives_the_pages_of_a_run_one_context(site, cdp_url: str) -> None:
    site.html("/set", "<p>here</p><script>document.cookie = 'who=first; path=/'</script>")
    site.html("/get", "<p id=told></p><script>told.append('cookie: ' + document.cookie)</script>")
    *_, second, _ = crawl(cdp_url, site.url("/set"), site.url("/get"))
    assert "who=first" in second.markdown.raw_markdown


@pytest.mark.slow
def test_crawl4ai_still_leaves_contexts_open(site, cdp_url: str) -> None:
    site.html("/", "<p>a page</p>")
    *_, num_contexts = crawl(cdp_url, site.url("/"), each=lambda crawler: len(_contexts(crawler)))
    assert num_contexts == 1


def _contexts(crawler: AsyncWebCrawler) -> dict[str, Any]:
    contexts: dict[str, Any] = crawler.crawler_strategy.browser_manager.contexts_by_config
    return contexts


@pytest.mark.slow
def test_crawl4ai_still_takes_a_page_of_few_words_for_one_that_keeps_robots_out(site, cdp_url: str) -> None:
    site.html("/", "hello")
    result, _ = crawl(cdp_url, site.url("/"))
    assert not result.success
    assert "anti-bot" in result.error_message


@pytest.mark.slow
def test_crawl4ai_still_turns_other_text_into_markdown(site, cdp_url: str) -> None:
    site.pages["/data"] = (200, {"Content-Type": "application/json"}, '{"a_b": "<b>*"}')
    result, _ = crawl(cdp_url, site.url("/data"))
    assert result.markdown.raw_markdown.strip() != '{"a_b": "<b>*"}'


@pytest.mark.slow
def test_crawl4ai_still_gives_up_a_page_that_keeps_asking_its_server_where_it_waits_for_the_network(
    site, cdp_url: str
) -> None:
    site.html("/", "<p>a page</p><script>setInterval(() => fetch('/more'), 100)</script>")
    result, _ = crawl(cdp_url, site.url("/"), wait_until="networkidle", page_timeout=3000)
    assert not result.success
    assert "Timeout" in result.error_message
    assert "Code context" in result.error_message


@pytest.mark.slow
def test_crawl4ai_still_has_no_limit_for_scripts_that_never_return(site, tmp_path: Path) -> None:
    site.html("/", "<p>a page</p><script>onload = () => { while (true) {} }</script>")

    async def work(cdp_url: str) -> None:
        async with AsyncWebCrawler(config=BrowserConfig(cdp_url=cdp_url, verbose=False), logger=SILENT) as crawler:
            async with asyncio.timeout(8):
                await crawler.arun(site.url("/"), CrawlerRunConfig(page_timeout=1000, body_visibility_timeout=1000))

    with a_chromium(tmp_path) as cdp_url, pytest.raises(TimeoutError):
        asyncio.run(work(cdp_url))


@pytest.mark.slow
def test_crawl4ai_still_loses_code_where_it_flattens_shadow_roots(site, cdp_url: str) -> None:
    site.html("/", "<p>write</p><pre>&lt;mark&gt;word&lt;/mark&gt;</pre><p>and so on, for as long as you like</p>")
    flat, _ = crawl(cdp_url, site.url("/"), flatten_shadow_dom=True)
    whole, _ = crawl(cdp_url, site.url("/"))
    assert "<mark>" not in flat.markdown.raw_markdown
    assert "<mark>" in whole.markdown.raw_markdown
