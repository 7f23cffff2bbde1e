"""The built-in `search`: any endpoint that answers as SearXNG does (`format=json`).

https://docs.searxng.org/dev/search_api.html
"""

import asyncio
from typing import Final

import httpx
from pydantic import BaseModel, ValidationError

from stillhouse.config import ToolsConfig
from stillhouse.errors import ConfigError
from stillhouse.http.bodies import BodyRefused, adecoded, aread_within
from stillhouse.tools.context import ToolError
from stillhouse.tools.decorator import Tool, tool
from stillhouse.tools.network.guard import (
    REQUEST_FAILED,
    AddressRefused,
    Guard,
    HostUnknown,
    guarded_client,
    host_and_port,
)

_NUM_RESULTS: Final = 8
_SNIPPET_CHARACTERS: Final = 300
_TIMEOUT_S: Final = 20.0
_MAX_AT_ONCE: Final = 8
_MAX_BYTES: Final = 8 << 20


class _Result(BaseModel):
    url: str
    title: str | None = None
    content: str | None = None


class _Answer(BaseModel):
    results: list[_Result]


def search_tool(config: ToolsConfig) -> Tool:
    """The tool `search`. Its endpoint may be private, as the user chose it; redirects of it may not.

    Raises:
        ConfigError: `tools.search_url` is not set, or is not an http or https URL.
    """
    if config.search_url is None:
        raise ConfigError("tools.search_url is not set: name a SearXNG endpoint")
    try:
        host, port = host_and_port(config.search_url)
    except AddressRefused as error:
        raise ConfigError(f"tools.search_url: {error}") from error
    endpoint = config.search_url
    guard = Guard([*config.allowed_hosts, f"{host}:{port}"])
    timeout_s = min(_TIMEOUT_S, config.timeout_s)

    @tool(max_concurrency=_MAX_AT_ONCE)
    async def search(query: str) -> str:
        """Searches the web and returns the first results: title, URL and a snippet of each."""
        try:
            # A client per call: connections are not kept anyway, and rollouts run in several event loops.
            async with asyncio.timeout(timeout_s), guarded_client(guard, timeout_s) as client:
                params = {"q": query, "format": "json"}
                async with client.stream("GET", endpoint, params=params) as response:
                    body = await aread_within(adecoded(response.headers, response.aiter_raw()), _MAX_BYTES)
        except (TimeoutError, httpx.TimeoutException) as error:
            raise ToolError(f"the search engine did not answer within {timeout_s:g} s") from error
        except BodyRefused as error:
            raise ToolError(f"the search engine cannot be read: the answer {error}") from error
        except (*REQUEST_FAILED, AddressRefused, HostUnknown) as error:
            raise ToolError(f"the search engine cannot be reached: {error or type(error).__name__}") from error
        return _format_results(query, response, body)

    return search


def _format_results(query: str, response: httpx.Response, body: bytes) -> str:
    if response.status_code == httpx.codes.FORBIDDEN:
        raise ToolError("the search engine answered HTTP 403: its settings must list json under search.formats")
    if response.is_error:
        raise ToolError(f"the search engine answered HTTP {response.status_code}")
    try:
        answer = _Answer.model_validate_json(body)
    except ValidationError as error:
        raise ToolError("the search engine did not answer in the form of SearXNG (format=json)") from error
    entries = []
    for number, result in enumerate(answer.results[:_NUM_RESULTS], start=1):
        parts = (f"{number}. {_one_line(result.title)}", result.url, _one_line(result.content))
        entries.append("\n".join(filter(None, parts)))
    return "\n\n".join(entries) or f"no results for {query!r}"


def _one_line(text: str | None) -> str:
    line = " ".join((text or "").split())
    return line if len(line) <= _SNIPPET_CHARACTERS else f"{line[:_SNIPPET_CHARACTERS].rstrip()} ..."
