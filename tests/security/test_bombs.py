"""Answers of a few hundred bytes that decode to gigabytes, and answers that are that long."""

import asyncio
import gzip
import json
import resource
import zlib
from collections.abc import Callable
from typing import Any

import brotli
import pytest

from stillhouse.config import ToolsConfig
from stillhouse.errors import ConfigError
from stillhouse.inference.failures import RequestFailed
from stillhouse.tools.context import ToolError
from stillhouse.tools.network.browse import Browse

LARGE = 384 << 20
MAX_BYTES = 4 << 20
MAX_GROWTH_KB = 300_000


def _gzipped(size: int) -> bytes:
    deflate = zlib.compressobj(1, wbits=16 + zlib.MAX_WBITS)
    block = bytes(1 << 20)
    return b"".join([deflate.compress(block) for _ in range(size >> 20)] + [deflate.flush()])


@pytest.fixture(scope="module")
def bombs() -> dict[str, tuple[str, bytes]]:
    """Return codings and bodies of some kilobytes that decode to 384 MiB."""
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


@pytest.fixture
def ways(clients: dict[str, Callable[..., Any]]) -> dict[str, Callable[[str], Any]]:
    """Return what reads an answer at an address, by name."""
    return {
        "browse": _browse,
        "chat": lambda url: clients["chat"](url, "none", max_bytes=MAX_BYTES),
        "hosted chat": lambda url: clients["hosted chat"](url, "none", max_bytes=MAX_BYTES),
        "score": lambda url: clients["score"](url, "none", max_bytes=MAX_BYTES),
        "batch": lambda url: clients["batch"](url, "none"),
        "mcp": lambda url: clients["mcp"](url, "none"),
    }


@pytest.mark.parametrize(
    "bomb", ["gzip thrice", "brotli", *(pytest.param(one, marks=pytest.mark.slow) for one in ("gzip", "deflate"))]
)
@pytest.mark.parametrize("way", ["browse", "chat", "hosted chat", "score", "batch", "mcp"])
def test_a_body_is_decoded_within_a_bound(
    stranger, bombs: dict[str, tuple[str, bytes]], ways: dict[str, Callable[[str], Any]], way: str, bomb: str
) -> None:
    coding, stranger.body = bombs[bomb]
    kind = "text/html" if way == "browse" else "application/json"
    stranger.headers = {"Content-Encoding": coding, "Content-Type": kind}
    before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        outcome = ways[way](stranger.url("/v1"))
    except (RequestFailed, ToolError, ConfigError) as error:
        outcome = str(error)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb < MAX_GROWTH_KB
    # Of a page the beginning is kept.
    refusals = ("is longer than", "is encoded as", "DecodingError")
    assert way == "browse" or any(refusal in outcome for refusal in refusals), outcome


@pytest.mark.parametrize("way", ["chat", "hosted chat", "score"])
def test_an_answer_that_is_too_long_is_not_read_to_its_end(
    stranger, ways: dict[str, Callable[[str], Any]], way: str
) -> None:
    stranger.body = json.dumps({"choices": "x" * (MAX_BYTES + 1)}).encode()
    with pytest.raises(RequestFailed, match="4 MiB"):
        ways[way](stranger.url("/v1"))
