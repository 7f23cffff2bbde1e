"""Pages as a person sees them: rendered by crawl4ai in one Chromium that all rollouts share.

crawl4ai drives it over CDP, through Playwright's pipe, as a debugging port would be open to every user of the machine.
Browser and contexts are ours: those of crawl4ai 0.9 have no sandbox, share cookies and stay open. Here every page has a
context of its own, and the browser is replaced after a number of pages, as its memory grows with each.
"""

import asyncio
import builtins
import os
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from stillhouse.tools.network.chromium import limit_memory, own_chromium, system_chromium
from stillhouse.tools.network.fetching import HTML_TYPES, MAX_PAGE_CHARACTERS, PageUnavailable, WebPage, require_text
from stillhouse.tools.network.guard import Guard
from stillhouse.tools.network.proxy import REASON_HEADER, GuardedProxy

_SETTLE_S: Final = 2.0
_STOP_TIMEOUT_S: Final = 5.0
# Chromium wraps other text than HTML in a page of its own; in that of XML the source is hidden.
_SHOWN_TEXT: Final = (
    "document.getElementById('webkit-xml-viewer-source-xml')?.innerHTML"
    " ?? document.body?.innerText ?? document.documentElement.outerHTML"
)
_ARGUMENTS: Final = (
    # Only text is needed; images are most of a page's bytes.
    "--blink-settings=imagesEnabled=false",
    # WebRTC would bypass the proxy over UDP. A build of Chromium knows one of these names.
    "--webrtc-ip-handling-policy=disable_non_proxied_udp",
    "--force-webrtc-ip-handling-policy=disable_non_proxied_udp",
    *("--disable-quic", "--disable-dev-shm-usage"),
)


class BrowserUnavailable(Exception):
    """Chromium does not start; the message says why and what to do."""


@dataclass(slots=True, eq=False)
class _Browser:
    handle: Any
    memory: asyncio.Task[None]
    """Limits its memory while it runs."""
    num_served: int = 0
    num_open: int = 0


class ChromiumFetcher:
    """Renders pages in a shared Chromium, which is started by the first one and replaced after `pages_per_browser`."""

    def __init__(self, guard: Guard, timeout_s: float, max_at_once: int = 8, pages_per_browser: int = 200) -> None:
        self._guard = guard
        self._timeout_s = timeout_s
        self._pages_per_browser = pages_per_browser
        self._slots = asyncio.Semaphore(max_at_once)
        self._starting = asyncio.Lock()
        self._driver: Any = None
        self._proxy = GuardedProxy(guard)
        self._proxy_url: str | None = None
        self._current: _Browser | None = None
        self._has_started = False

    async def get(self, url: str) -> WebPage:
        """Return the page at an http or https URL.

        Raise PageUnavailable if it is not text or cannot be loaded, BrowserUnavailable if Chromium has never started,
        or what `Guard.addresses` raises.
        """
        # The browser would open other addresses (file:) without its proxy.
        await self._guard.check(url)
        async with self._slots:
            # Shielded: a cancelled caller must not lose track of a browser that is starting.
            browser = await asyncio.shield(asyncio.ensure_future(self._ready()))
            browser.num_served += 1
            browser.num_open += 1
            try:
                return await self._load(browser, url)
            finally:
                await asyncio.shield(asyncio.ensure_future(self._give_back(browser)))

    async def close(self) -> None:
        async with self._starting:
            if self._current is not None:
                await _end(self._current)
                self._current = None
            await self._stop_driver()
            await self._proxy.close()
            self._proxy_url = None

    async def _ready(self) -> _Browser:
        async with self._starting:
            current = self._current
            if current is None or current.num_served >= self._pages_per_browser or not current.handle.is_connected():
                self._current = None
                # A browser with open pages is closed with the last of them.
                if current is not None and current.num_open == 0:
                    await _end(current)
                handle = await self._launch()
                current = self._current = _Browser(handle, asyncio.create_task(limit_memory(handle)))
            return current

    async def _give_back(self, browser: _Browser) -> None:
        browser.num_open -= 1
        if browser.num_open == 0 and browser is not self._current:
            await _end(browser)

    async def _launch(self) -> Any:
        from playwright.async_api import Error, async_playwright

        if self._proxy_url is None:
            self._proxy_url = await self._proxy.start()
        if self._driver is None:
            self._driver = await async_playwright().start()
        path = own_chromium(self._driver) or system_chromium()
        if path is None:
            raise BrowserUnavailable(
                "no Chromium is installed: run `playwright install chromium`, or install the system's"
            )
        try:
            handle = await self._driver.chromium.launch(
                executable_path=path,
                headless=True,
                # The sandbox refuses to run as root, the usual user of a container. Anyone else keeps it.
                chromium_sandbox=not (hasattr(os, "geteuid") and os.geteuid() == 0),
                proxy={"server": self._proxy_url, "bypass": "<-loopback>"},
                args=list(_ARGUMENTS),
                # Signals belong to the run, which closes its browser when it stops.
                handle_sigint=False,
                handle_sigterm=False,
                handle_sighup=False,
            )
        except Error as error:
            # The driver may have ended; the next page gets another.
            await self._stop_driver()
            reason = f"{path} does not start: {error.message.splitlines()[0]}"
            raise (PageUnavailable(reason) if self._has_started else BrowserUnavailable(reason)) from error
        self._has_started = True
        return handle

    async def _stop_driver(self) -> None:
        from playwright.async_api import Error

        driver, self._driver = self._driver, None
        if driver is not None:
            with suppress(Error, builtins.TimeoutError):
                await asyncio.wait_for(driver.stop(), _STOP_TIMEOUT_S)

    async def _load(self, browser: _Browser, url: str) -> WebPage:
        from playwright.async_api import Error, TimeoutError

        visit = _Visit(url)
        try:
            context = await browser.handle.new_context(accept_downloads=False, service_workers="block")
            try:
                return await self._render(await context.new_page(), visit)
            finally:
                await asyncio.shield(asyncio.ensure_future(context.close()))
        except builtins.TimeoutError as error:
            raise PageUnavailable(f"{visit.url} cannot be read: its scripts do not come to rest") from error
        except (Error, RuntimeError) as error:
            # crawl4ai wraps what the navigation raised.
            cause = error.__context__ if isinstance(error.__context__, Error) else error
            if isinstance(cause, TimeoutError):
                raise PageUnavailable(f"{url} did not load within {self._timeout_s:g} s") from error
            # Of an https page that the proxy refused Playwright only sees a failed tunnel; the guard knows the reason.
            await self._guard.check(visit.url)
            if visit.response is not None:
                await self._kind(visit, visit.response)
            if "Download is starting" in str(cause):
                raise PageUnavailable(f"{visit.url} is not text but a file to download") from error
            # `net::ERR_...`; the message continues with a call log.
            reason = str(cause).splitlines()[0].removeprefix("Page.goto: ").partition(" at ")[0]
            raise PageUnavailable(f"{visit.url} could not be loaded: {reason}") from error

    async def _render(self, page: Any, visit: "_Visit") -> WebPage:
        from stillhouse.tools.network.crawling import strategy_of

        page.on("request", lambda request: visit.note_request(request, page))
        page.on("response", lambda response: visit.note_response(response, page))
        strategy, config = strategy_of(page, self._timeout_s, _SETTLE_S)
        async with asyncio.timeout(self._timeout_s + _SETTLE_S) as limit:
            strategy.set_hook("after_goto", partial(self._arrive, visit, limit))
            try:
                text = (await strategy.crawl(visit.url, config=config)).html
            except _IsRead as found:
                text = str(found)
        return WebPage(page.url, visit.kind, text[:MAX_PAGE_CHARACTERS])

    async def _arrive(self, visit: "_Visit", limit: asyncio.Timeout, page: Any, response: Any, **_: Any) -> None:
        from playwright.async_api import TimeoutError

        if response is None:
            raise PageUnavailable(f"{visit.url} could not be loaded: there was no answer")
        await self._kind(visit, response)
        # crawl4ai has none beyond the navigation, and a script that never returns blocks the page.
        limit.reschedule(asyncio.get_running_loop().time() + 2 * _SETTLE_S + self._timeout_s)
        # Scripts that build the page, or redirect, get some time. A page that never settles is read as it is; crawl4ai
        # would give it up.
        with suppress(TimeoutError):
            await page.wait_for_load_state("networkidle", timeout=_SETTLE_S * 1000)
        if visit.response is not None:
            await self._kind(visit, visit.response)
        if visit.kind not in HTML_TYPES:
            raise _IsRead(await page.evaluate(_SHOWN_TEXT))
        if await page.query_selector("body") is None:
            # crawl4ai waits half a minute for a body; a page of frames has none.
            raise _IsRead(await page.content())

    async def _kind(self, visit: "_Visit", response: Any) -> None:
        reason = response.headers.get(REASON_HEADER)
        if reason is not None:
            await self._guard.check(visit.url)
            raise PageUnavailable(f"{visit.url} could not be loaded: {reason}")
        visit.kind = require_text(response.url, response.status, response.headers.get("content-type", ""))


@dataclass(slots=True)
class _Visit:
    """The state of a page's navigation, which Playwright's errors do not report."""

    url: str
    response: Any = None
    kind: str = ""

    def note_request(self, request: Any, page: Any) -> None:
        if request.is_navigation_request() and request.frame == page.main_frame:
            self.url, self.response = request.url, None

    def note_response(self, response: Any, page: Any) -> None:
        if response.request.is_navigation_request() and response.frame == page.main_frame:
            self.response = response


class _IsRead(Exception):
    """Ends crawl4ai's work on a page that is read already; the message is its text."""


async def _end(browser: _Browser) -> None:
    from playwright.async_api import Error

    browser.memory.cancel()
    await asyncio.gather(browser.memory, return_exceptions=True)
    # One that crashed is closed already.
    with suppress(Error):
        await browser.handle.close()
