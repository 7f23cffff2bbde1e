import asyncio
import json
from typing import Any

import pytest

from stillhouse.config import ToolsConfig
from stillhouse.errors import ConfigError
from stillhouse.tools.context import ToolError
from stillhouse.tools.network.search import search_tool


def search(url: str, query: str = "stills", **fields: Any) -> str:
    tool = search_tool(ToolsConfig(search_url=url, **fields))
    return asyncio.run(tool.function(query))


def answer(*results: dict[str, Any]) -> tuple[int, dict[str, str], str]:
    return 200, {"Content-Type": "application/json"}, json.dumps({"query": "stills", "results": list(results)})


def test_results_are_listed_with_title_url_and_snippet(site) -> None:
    site.pages["/search"] = answer(
        {"url": "https://a.example/", "title": "Pot  still", "content": "made of\ncopper", "engine": "x", "score": 2.0},
        {"url": "https://b.example/", "title": "Column still", "content": None},
    )
    assert search(site.url("/search"), "pot & column") == (
        "1. Pot still\nhttps://a.example/\nmade of copper\n\n2. Column still\nhttps://b.example/"
    )
    assert site.seen == ["/search?q=pot+%26+column&format=json"]


def test_a_long_list_and_long_snippets_are_cut(site) -> None:
    result = {"url": "https://a.example/", "title": "still", "content": "word " * 500}
    site.pages["/search"] = answer(*[result] * 30)
    text = search(site.url("/search"))
    assert text.count("https://a.example/") == 8
    assert len(text) < 8 * 400


def test_no_results_are_told(site) -> None:
    site.pages["/search"] = answer()
    assert search(site.url("/search"), "nothing") == "no results for 'nothing'"


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        ((403, {}, ""), "must list json under search.formats"),
        ((429, {}, ""), "answered HTTP 429"),
        ((200, {"Content-Type": "text/html"}, "<html></html>"), "did not answer in the form of SearXNG"),
        ((200, {}, '{"results": [{"title": "no url"}]}'), "did not answer in the form of SearXNG"),
        ((302, {"Location": "http://169.254.169.254/latest"}, ""), "169.254.169.254 is not on the public internet"),
    ],
)
def test_an_endpoint_that_gives_no_results_is_told_in_words(site, reply: Any, message: str) -> None:
    site.pages["/search"] = reply
    with pytest.raises(ToolError, match=message):
        search(site.url("/search"))


def test_an_endpoint_that_does_not_answer_is_given_up(site) -> None:
    site.delay_s = 2.0
    with pytest.raises(ToolError, match=r"did not answer within 0\.2 s"):
        search(site.url("/search"), timeout_s=0.2)


def test_an_endpoint_that_is_down_is_told() -> None:
    with pytest.raises(ToolError, match="cannot be reached"):
        search("http://127.0.0.1:1/search")


def test_an_endpoint_that_is_no_web_address_is_a_mistake_of_the_config() -> None:
    with pytest.raises(ConfigError, match=r"tools\.search_url"):
        search_tool(ToolsConfig(search_url="searx.example"))
    with pytest.raises(ConfigError, match=r"tools\.search_url"):
        search_tool(ToolsConfig())
