import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stillhouse.config import ToolsConfig
from stillhouse.errors import ConfigError
from stillhouse.tools import Toolbox
from stillhouse.tools.context import ToolError
from stillhouse.tools.network.browse import Browse

Read = Callable[..., str]


@pytest.fixture
def read(site) -> Read:
    """Return what `browse` says of a page, fetched without a browser."""

    def browse(url: str, **fields: Any) -> str:
        one = Browse(ToolsConfig(**{"browse_with": "http", "allowed_hosts": (site.host,), **fields}))

        async def use() -> str:
            async with Toolbox([one.tool], resources=[one]) as toolbox:
                result = await toolbox.call("browse", json.dumps({"url": url}))
            if result.error_kind is not None:
                raise ToolError(result.content)
            return result.content

        return asyncio.run(use())

    return browse


@pytest.mark.parametrize(
    ("content_type", "body", "text"),
    [
        (
            "text/html; charset=utf-8",
            "<html><body><h1>Shop</h1><p>See <a href='list?page=1'>the <b>list</b></a>.</p><script>1</script>",
            "# Shop\nSee [the **list**](URL/shop/list?page=1).",
        ),
        ("text/html", "<html><head><title>Shop</title></head><body>Open</body></html>", "# Shop\n\nOpen"),
        ("text/html", '<meta charset="latin-1"><p>caf\xe9</p>'.encode("latin-1"), "caf\xe9"),
        ("text/html", "<html><body><script>build()</script></body></html>", "(the page has no text)"),
        (
            "text/html",
            "<html><head><base href='/docs/'><title>Docs</title></head><body><a href='list'>list</a></body></html>",
            "# Docs\n\n[list](URL/docs/list)",
        ),
        (
            "text/html",
            "<BASE target=_blank href=http://example.org/a/><a href='b'>b</a>",
            "[b](http://example.org/a/b)",
        ),
        ("text/html", "<p>a<noscript><noscript><img></noscript></noscript><p>and more", "a\nand more"),
        ("application/json", '{"a": "<b>"}', '{"a": "<b>"}'),
    ],
)
def test_a_page_is_read_as_markdown_and_other_text_as_it_is(
    site, read, content_type: str, body: str | bytes, text: str
) -> None:
    site.pages["/shop/"] = (200, {"Content-Type": content_type}, body)
    assert read(site.url("/shop/")) == text.replace("URL", site.url(""))


def test_a_long_page_is_cut_and_says_so(site, read) -> None:
    site.html("/", "".join(f"<p>line {number}</p>" for number in range(1000)))
    text = read(site.url("/"), max_result_characters=100)
    assert text.startswith("line 0\nline 1\n")
    shown, _, note = text.rpartition("\n\n")
    assert len(shown) <= 100
    assert note.startswith("[cut here: these are the first 100 of ")


def test_a_page_that_would_be_cut_keeps_its_content_and_not_its_menus(site, read) -> None:
    menu = "<nav>" + "".join(f"<a href='/{number}'>Menu {number}</a> " for number in range(50)) + "</nav>"
    site.html("/long", menu + "".join(f"<p>This is line {number} of the text.</p>" for number in range(100)))
    site.html("/index", menu)
    assert read(site.url("/long"), max_result_characters=1000).startswith("This is line 0 of the text.\nThis is line 1")
    assert read(site.url("/long")).startswith("[Menu 0]")
    assert read(site.url("/index"), max_result_characters=1000).startswith("[Menu 0]")


@pytest.mark.parametrize("piece", ["<base x", "<meta ", "<base href", "<pre>", "<div>"])
def test_a_page_made_to_take_long_is_read(site, read, piece: str) -> None:
    site.html("/", f"<p>here</p><script>{piece * 100_000}</script></head>")
    assert read(site.url("/")).endswith("here")


@pytest.mark.parametrize(
    ("path", "message", "fields"),
    [
        ("/missing", "404", {}),
        ("/image", "image/png", {}),
        ("/loop", "redirects", {}),
        ("/inside", "localhost", {}),
        ("/private", "public", {"allowed_hosts": ()}),
        ("https://nowhere.invalid/", r"nowhere\.invalid", {}),
    ],
)
def test_what_cannot_be_read_is_told_in_words(site, read, path: str, message: str, fields: dict[str, Any]) -> None:
    site.pages["/image"] = (200, {"Content-Type": "image/png"}, "x")
    site.redirect("/loop", site.url("/loop"))
    site.redirect("/inside", site.url("/secret", "localhost"))
    with pytest.raises(ToolError, match=message):
        read(path if path.startswith("https") else site.url(path), **fields)
    assert "/private" not in site.seen


def test_a_page_that_takes_too_long_is_given_up(site, read) -> None:
    site.delay_s = 2.0
    with pytest.raises(ToolError, match=r"0\.2 s"):
        read(site.url("/"), timeout_s=0.2)


def test_a_toolbox_with_browse_counts_what_it_refuses_and_serves_again_after_it_was_closed(site) -> None:
    site.html("/", "hello")
    toolbox = Toolbox.from_config(ToolsConfig(builtin=("browse",), browse_with="http", allowed_hosts=(site.host,)))

    async def use() -> list[Any]:
        async with toolbox:
            urls = [site.url("/")] * 12 + ["http://10.0.0.1/"]
            return await asyncio.gather(*(toolbox.call("browse", f'{{"url": "{url}"}}') for url in urls))

    for _ in range(2):
        *pages, refused = asyncio.run(use())
        assert [(page.content, page.error_kind) for page in pages] == [("hello", None)] * 12
        assert refused.error_kind == "exception"
        assert "10.0.0.1 is not on the public internet" in refused.content


def test_a_missing_package_is_named_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "crawl4ai", None)
    with pytest.raises(ConfigError, match="crawl4ai"):
        Browse(ToolsConfig())


def test_without_a_chromium_auto_fetches_pages_and_browser_says_what_to_install(
    site, read, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("PLAYWRIGHT_BROWSERS_PATH", str(tmp_path))
    site.html("/", "hello <script>document.body.append('built')</script>")
    assert read(site.url("/"), browse_with="auto") == "hello"
    with pytest.raises(ConfigError, match="playwright install"):
        Browse(ToolsConfig(browse_with="browser"))


def test_a_browser_that_does_not_start_is_done_without(
    site, read, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    broken = tmp_path / "chromium"
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    site.html("/", "hello")
    assert read(site.url("/"), browse_with="auto") == "hello"
    assert "pages are fetched without a browser from now on" in caplog.text
    with pytest.raises(ToolError, match="start"):
        read(site.url("/"), browse_with="browser")


def test_nothing_is_printed_and_nothing_is_written_to_the_home_folder(site, tmp_path: Path) -> None:
    site.html("/", "hello")
    code = (
        "import asyncio\n"
        "from stillhouse.config import ToolsConfig\n"
        "from stillhouse.tools.network.browse import Browse\n"
        f"one = Browse(ToolsConfig(browse_with='http', allowed_hosts=({site.host!r},)))\n"
        f"assert asyncio.run(one.tool.function({site.url('/')!r})) == 'hello'"
    )
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert list(tmp_path.iterdir()) == []


def test_cookies_of_one_page_reach_no_other_and_no_cookie_crashes_a_run(site) -> None:
    browse = Browse(ToolsConfig(browse_with="http", allowed_hosts=("127.0.0.1",)))
    site.pages["/"] = (302, {"Location": "/next", "Set-Cookie": "a=\x83"}, "")
    site.pages["/next"] = (200, {"Content-Type": "text/html", "Set-Cookie": "b=1"}, "<p>here</p>")
    with pytest.raises(ToolError, match="loaded"):
        asyncio.run(browse.tool.function(site.url("/")))
    for _ in range(2):
        assert asyncio.run(browse.tool.function(site.url("/next"))) == "here"
    asyncio.run(browse.close())
