"""Answers of a few hundred bytes that decode to gigabytes, and answers that are that long."""

import asyncio
import gzip
import json
import resource
import tempfile
import time
import zlib
from collections.abc import Callable
from contextlib import aclosing, closing
from pathlib import Path
from typing import Any

import brotli
import pytest

from stillhouse.config import McpServerConfig, ToolsConfig
from stillhouse.errors import ConfigError
from stillhouse.inference.batch import BatchClient, BatchPace
from stillhouse.inference.completion import Sampling
from stillhouse.inference.endpoint import Endpoint
from stillhouse.inference.failures import RequestFailed
from stillhouse.inference.http_client import HttpClient
from stillhouse.inference.model_server import ModelServer
from stillhouse.tools.context import ToolError
from stillhouse.tools.mcp_servers.tools import McpTools
from stillhouse.tools.network.browse import Browse
from stillhouse.tools.network.search import search_tool

LARGE = 512 << 20
MAX_BYTES = 4 << 20
MAX_GROWTH_KB = 300_000


def _gzipped(size: int) -> bytes:
    deflate = zlib.compressobj(1, wbits=16 + zlib.MAX_WBITS)
    block = bytes(1 << 20)
    return b"".join([deflate.compress(block) for _ in range(size >> 20)] + [deflate.flush()])


@pytest.fixture(scope="module")
def bombs() -> dict[str, tuple[str, bytes]]:
    """Codings and bodies of some kilobytes that decode to half a gigabyte."""
    once = _gzipped(LARGE)
    brotli_ = brotli.Compressor(quality=5)
    block = bytes(1 << 20)
    return {
        "gzip": ("gzip", once),
        "gzip thrice": ("gzip, gzip, gzip", gzip.compress(gzip.compress(once))),
        "brotli": ("br", b"".join([brotli_.process(block) for _ in range(LARGE >> 20)] + [brotli_.finish()])),
        "deflate": ("deflate", zlib.compress(bytes(LARGE), 1)),
    }


def _browse(url: str) -> Any:
    browse = Browse(ToolsConfig(browse_with="http", allowed_hosts=("127.0.0.1",)))

    async def main() -> Any:
        try:
            return await browse.tool.function(url)
        finally:
            await browse.close()

    return asyncio.run(main())


def _search(url: str) -> Any:
    return asyncio.run(search_tool(ToolsConfig(search_url=url)).function("eggs"))


def _chat(url: str) -> Any:
    async def main() -> Any:
        endpoint = Endpoint(url, "m", "m", "none")
        async with aclosing(HttpClient(endpoint, timeout_s=20, max_bytes=MAX_BYTES)) as client:
            return await client.complete([{"role": "user", "content": "hi"}], [], Sampling(0.5, 0.9, 32, 7))

    return asyncio.run(main())


def _score(url: str) -> Any:
    with closing(ModelServer(url, None, 20, max_bytes=MAX_BYTES)) as server:
        return server.get("/v1/models")


def _batch(url: str) -> Any:
    async def main(folder: Path) -> Any:
        client = BatchClient(Endpoint(url, "m", "m", "none"), folder, pace=BatchPace(gather_s=0.01, poll_s=0.01))
        async with aclosing(client):
            return await client.complete([{"role": "user", "content": "hi"}], [], Sampling(0.5, 0.9, 32, 7))

    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(main(Path(folder)))


def _offer_tools(url: str) -> Any:
    return McpTools([McpServerConfig(name="shop", url=url)])


WAYS: dict[str, Callable[[str], Any]] = {
    "browse": _browse,
    "search": _search,
    "chat": _chat,
    "score": _score,
    "batch": _batch,
    "mcp": _offer_tools,
}


@pytest.mark.parametrize(
    "bomb",
    ["gzip thrice", "brotli", *(pytest.param(one, marks=pytest.mark.slow) for one in ("gzip", "deflate"))],
)
@pytest.mark.parametrize("way", WAYS)
def test_a_body_is_decoded_within_a_bound(
    stranger: Any, bombs: dict[str, tuple[str, bytes]], way: str, bomb: str
) -> None:
    coding, stranger.body = bombs[bomb]
    kind = "text/html" if way == "browse" else "application/json"
    stranger.headers = {"Content-Encoding": coding, "Content-Type": kind}
    before_kb, started = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.monotonic()
    try:
        outcome = WAYS[way](stranger.url("/v1"))
    except (RequestFailed, ToolError, ConfigError) as error:
        outcome = str(error)
    assert time.monotonic() - started < 15
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb < MAX_GROWTH_KB
    # Of a page the beginning is kept.
    assert way == "browse" or "is longer than" in outcome or "is encoded as" in outcome or "DecodingError" in outcome, (
        outcome
    )


def test_an_answer_that_is_too_long_is_not_read_to_its_end(stranger: Any) -> None:
    stranger.body = json.dumps({"choices": "x" * (MAX_BYTES + 1)}).encode()
    for ask in (_chat, _score):
        with pytest.raises(RequestFailed, match=r"the answer is longer than 4 MiB"):
            ask(stranger.url("/v1"))
