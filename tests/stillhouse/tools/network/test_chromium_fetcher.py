import asyncio
import gzip
import os
import signal
import socket
import subprocess
import sys
import zlib
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from typing import Any

import psutil
import pytest

from stillhouse.config import ToolsConfig
from stillhouse.tools.context import ToolError
from stillhouse.tools.network.browse import Browse
from stillhouse.tools.network.chromium import system_chromium
from stillhouse.tools.network.chromium_fetcher import ChromiumFetcher
from stillhouse.tools.network.fetching import MAX_PAGE_CHARACTERS, PageUnavailable
from stillhouse.tools.network.guard import Guard
from tests.waiting import is_alive, until

pytestmark = pytest.mark.skipif(
    system_chromium() is None, reason="no Chromium on this machine: apt-get install chromium"
)

Read = Callable[[str], str]
Work = Callable[[ChromiumFetcher], Awaitable[Any]]


def with_fetcher(work: Work, timeout_s: float = 10.0, **limits: int) -> Any:
    """Return what the work gives with a fetcher of its own, which may reach 127.0.0.1."""

    async def use() -> Any:
        fetcher = ChromiumFetcher(Guard(["127.0.0.1"]), timeout_s, **limits)
        try:
            return await work(fetcher)
        finally:
            await fetcher.close()

    return asyncio.run(use())


@pytest.fixture(scope="module")
def browse() -> Iterator[Browse]:
    """Yield one browser for the tests of this file; 127.0.0.1 may be reached, localhost may not."""
    one = Browse(ToolsConfig(browse_with="browser", allowed_hosts=("127.0.0.1",)))
    yield one
    asyncio.run(one.close())


@pytest.fixture
def read(browse: Browse) -> Read:
    return lambda url: asyncio.run(browse.tool.function(url))


def browsers(process: psutil.Process) -> list[psutil.Process]:
    """Return the Chromiums below a process, without the helpers each of them has."""
    found = []
    for child in process.children(recursive=True):
        try:
            command = " ".join(child.cmdline())
        except psutil.Error:
            continue
        if "--headless" in command and "--type=" not in command and child.status() != psutil.STATUS_ZOMBIE:
            found.append(child)
    return found


def test_scripts_have_built_the_page_before_it_is_read(site, read) -> None:
    site.pages["/data"] = (200, {"Content-Type": "text/plain"}, "from the server")
    site.html("/", "<p>one</p><script>fetch('/data').then(r => r.text()).then(t => document.body.append(t))</script>")
    assert read(site.url("/")) == "one\nfrom the server"


@pytest.mark.parametrize(
    ("content_type", "body", "text"),
    [
        ("application/json", '{"a_b": "<b>*"}', '{"a_b": "<b>*"}'),
        ("text/plain", "a < b\n  * c\n", "a < b\n  * c\n"),
        ("application/xml", "<r><i>one</i></r>", "<r><i>one</i></r>"),
        ("text/html", "<style>body {display: none}</style><p>shown later", "shown later"),
        ("text/html", "<p>asks<script>setInterval(() => fetch('/more'), 100)</script>", "asks"),
        ("text/html", "<script>alert('stop'); onbeforeunload = () => 'stay'</script><p>goes on", "goes on"),
        ("text/html", "<meta http-equiv=refresh content='0; url=/there'>", "arrived"),
        ("text/html", "<frameset><frame src='/there'></frameset>", "(the page has no text)"),
    ],
)
def test_pages_of_all_kinds_are_read(site, read, content_type: str, body: str, text: str) -> None:
    site.html("/there", "arrived")
    site.pages["/"] = (200, {"Content-Type": content_type}, body)
    assert read(site.url("/")) == text


def test_no_other_user_can_drive_the_browser(site, read) -> None:
    site.html("/", "hello")
    assert read(site.url("/")) == "hello"
    for browser in browsers(psutil.Process()):
        assert "--remote-debugging-pipe" in browser.cmdline()
        assert not [open_ for open_ in browser.net_connections() if open_.status == psutil.CONN_LISTEN]


GATHERS = """<div id=told></div><script>
const peer = new RTCPeerConnection({{iceServers: [{{urls: '{server}', username: 'u', credential: 'c'}}]}})
peer.onicegatheringstatechange = () => document.getElementById('told').append(peer.iceGatheringState + ' ')
peer.createDataChannel('x')
peer.createOffer().then(offer => peer.setLocalDescription(offer))</script>"""


@pytest.mark.parametrize("address", ["stun:127.0.0.1:{}", "turn:127.0.0.1:{}", "turn:localhost:{}?transport=tcp"])
def test_a_pages_webrtc_reaches_nothing_on_loopback(site, read, address: str) -> None:
    kind = socket.SOCK_STREAM if "tcp" in address else socket.SOCK_DGRAM
    with socket.socket(socket.AF_INET, kind) as inside:
        inside.bind(("127.0.0.1", 0))
        inside.settimeout(1.0)
        if kind is socket.SOCK_STREAM:
            inside.listen()
        site.html("/", GATHERS.format(server=address.format(inside.getsockname()[1])))
        # Without this nothing would arrive whatever the browser was told.
        assert "gathering" in read(site.url("/"))
        with pytest.raises(TimeoutError):
            inside.accept() if kind is socket.SOCK_STREAM else inside.recvfrom(2048)


@pytest.mark.slow
def test_a_page_that_takes_gigabytes_is_closed_and_the_next_one_is_read(site, read) -> None:
    block, deflate = bytes(1 << 20), zlib.compressobj(9, wbits=16 + zlib.MAX_WBITS)
    once = b"".join([deflate.compress(block) for _ in range(4096)] + [deflate.flush()])
    headers = {"Content-Type": "text/html", "Content-Encoding": "gzip, gzip, gzip"}
    site.pages["/bomb"] = (200, headers, gzip.compress(gzip.compress(once)))
    site.html("/", "<p>here</p>")
    with pytest.raises(ToolError, match="crashed"):
        read(site.url("/bomb"))
    assert read(site.url("/")) == "here"


def test_nothing_a_page_does_reaches_a_private_host(site, read) -> None:
    inside = site.url("/secret", "localhost")
    site.html("/secret", "SECRET")
    site.redirect("/hop", inside)
    site.html(
        "/",
        f"""<img src="{inside}?image"><iframe src="{inside}?frame"></iframe><script src="{inside}?script"></script>
        <link rel=stylesheet href="{inside}?style"><iframe src="/hop"></iframe><div id=told></div><script>
        const told = what => document.getElementById('told').append(what + ' ')
        fetch('{inside}?fetch', {{mode: 'no-cors'}}); fetch('/hop', {{mode: 'no-cors'}})
        const socket = new WebSocket('{inside.replace("http", "ws")}?socket')
        socket.onopen = () => told('open'); socket.onerror = () => told('not-open')
        navigator.sendBeacon('{inside}?beacon')</script>""",
    )
    text = read(site.url("/"))
    assert "not-open" in text
    assert "SECRET" not in text
    assert not [path for path in site.seen if path.startswith("/secret")]


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/redirect", "localhost"),
        ("/redirect-tls", r"169\.254\.169\.254"),
        ("/by-script", "localhost"),
        ("/missing", "404"),
        ("/empty-error", "500"),
        ("/image", "image/png"),
        ("/download", "download"),
    ],
)
def test_what_cannot_be_read_is_told_in_words(site, read, path: str, message: str) -> None:
    inside = site.url("/secret", "localhost")
    site.redirect("/redirect", inside)
    site.redirect("/redirect-tls", "https://169.254.169.254/latest/meta-data/")
    site.html("/by-script", f"<script>location = '{inside}'</script>")
    site.pages["/empty-error"] = (500, {}, "")
    site.pages["/image"] = (200, {"Content-Type": "image/png"}, "x")
    site.pages["/download"] = (200, {"Content-Type": "text/plain", "Content-Disposition": "attachment"}, "x")
    with pytest.raises(ToolError, match=message):
        read(site.url(path))


@pytest.mark.parametrize("url", ["file:///etc/passwd", "chrome://version", "http://localhost:1/", "data:text/html,x"])
def test_the_browser_is_not_asked_for_what_the_guard_refuses(read, url: str) -> None:
    with pytest.raises(ToolError, match=r"web address|public"):
        read(url)


def test_pages_share_no_cookies(site, read) -> None:
    site.html("/set", "<script>document.cookie = 'who=first; path=/'; document.body.append(document.cookie)</script>")
    site.html("/get", "<script>document.body.append('cookie: ' + document.cookie)</script>")
    assert read(site.url("/set")) == "who=first"
    assert read(site.url("/get")) == "cookie:"


@pytest.mark.slow
def test_pages_are_released_and_the_browser_is_replaced(site) -> None:
    site.html("/", "hello")
    here = psutil.Process()
    before = {process.pid for process in browsers(here)}

    async def work(fetcher: ChromiumFetcher) -> tuple[list[set[int]], int]:
        seen = []
        for _ in range(3):
            await asyncio.gather(*(fetcher.get(site.url("/")) for _ in range(2)))
            seen.append({process.pid for process in browsers(here)} - before)
        assert fetcher._current is not None
        return seen, len(fetcher._current.handle.contexts)

    seen, num_contexts = with_fetcher(work, max_at_once=2, pages_per_browser=2)
    assert [len(pids) for pids in seen] == [1, 1, 1]
    assert len(set.union(*seen)) == 3
    assert num_contexts == 0
    assert until(lambda: {process.pid for process in browsers(here)} == before)


@pytest.mark.slow
def test_hundreds_of_pages_leave_no_context_page_or_process(site) -> None:
    site.html("/", "<p>hello</p><script>document.cookie = 'a=1'</script>")
    here = psutil.Process()

    async def work(fetcher: ChromiumFetcher) -> tuple[list[int], int]:
        counts = []
        for _ in range(2):
            await asyncio.gather(*(fetcher.get(site.url("/")) for _ in range(100)), return_exceptions=True)
            await asyncio.sleep(1.0)
            counts.append(len([child for child in here.children(recursive=True) if child.is_running()]))
        assert fetcher._current is not None
        return counts, len(fetcher._current.handle.contexts)

    (first, second), num_contexts = with_fetcher(work, timeout_s=60.0, pages_per_browser=1000)
    assert second <= first + 1
    assert num_contexts == 0


@pytest.mark.slow
def test_a_page_of_50_megabytes_is_read_up_to_the_bound_or_given_up_and_the_next_one_is_read(site) -> None:
    site.html("/big", "<p>word</p>" * 4_500_000)
    site.html("/", "hello")

    async def work(fetcher: ChromiumFetcher) -> str:
        # A slow machine needs longer than a page may take.
        with suppress(PageUnavailable):
            assert len((await fetcher.get(site.url("/big"))).text) == MAX_PAGE_CHARACTERS
        return (await fetcher.get(site.url("/"))).text

    assert "hello" in with_fetcher(work, timeout_s=60.0)


@pytest.mark.slow
def test_32_calls_at_a_time_are_served(site, browse: Browse) -> None:
    site.html("/", "hello")

    async def work() -> list[str]:
        return await asyncio.gather(*(browse.tool.function(site.url("/")) for _ in range(32)))

    assert asyncio.run(work()) == ["hello"] * 32


@pytest.mark.slow
def test_a_browser_that_was_killed_is_replaced(site) -> None:
    site.html("/", "hello")
    here = psutil.Process()
    before = {process.pid for process in browsers(here)}

    async def work(fetcher: ChromiumFetcher) -> str:
        await fetcher.get(site.url("/"))
        for process in browsers(here):
            if process.pid not in before:
                process.kill()
        await asyncio.sleep(0.5)
        return (await fetcher.get(site.url("/"))).text

    assert "hello" in with_fetcher(work)


@pytest.mark.slow
def test_a_page_that_never_answers_is_given_up_and_its_place_is_free_again(site) -> None:
    async def work(fetcher: ChromiumFetcher) -> str:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(2.5):
                await fetcher.get(site.url("/slow"))
        site.delay_s = 0.0
        return (await fetcher.get(site.url("/quick"))).text

    site.html("/quick", "hello")
    site.delay_s = 5.0
    assert "hello" in with_fetcher(work, max_at_once=1)


@pytest.mark.slow
def test_the_browser_ends_with_a_run_that_is_killed(site) -> None:
    site.html("/", "hello")
    code = (
        "import asyncio\n"
        "from stillhouse.config import ToolsConfig\n"
        "from stillhouse.tools.network.browse import Browse\n"
        "one = Browse(ToolsConfig(browse_with='browser', allowed_hosts=('127.0.0.1',)))\n"
        f"print(asyncio.run(one.tool.function({site.url('/')!r})), flush=True)\n"
        "import time; time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        assert run.stdout.readline().strip() == "hello"
        (browser,) = browsers(psutil.Process(run.pid))
        os.kill(run.pid, signal.SIGKILL)
        assert until(lambda: not is_alive(browser.pid))


@pytest.mark.slow
def test_scripts_that_never_return_cost_their_own_page_alone(site) -> None:
    site.html("/early", "<script>while (true) {}</script>")
    site.html("/late", "<script>onload = () => { while (true) {} }</script>")
    site.html("/", "hello")

    async def work(fetcher: ChromiumFetcher) -> str:
        with pytest.raises(PageUnavailable, match="2 s"):
            await fetcher.get(site.url("/early"))
        with pytest.raises(PageUnavailable, match="rest"):
            await fetcher.get(site.url("/late"))
        return (await fetcher.get(site.url("/"))).text

    assert "hello" in with_fetcher(work, timeout_s=2.0, max_at_once=1)
