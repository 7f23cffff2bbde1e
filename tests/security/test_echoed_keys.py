"""Providers that repeat the key they were sent, in refusals, in answers and in headers, however they spell it."""

import asyncio
import json
import traceback
from collections.abc import Callable
from contextlib import aclosing, closing, suppress
from pathlib import Path
from typing import Any

import pytest

from benchmarks.simulated_provider import Asked, Reply, SimulatedProvider, completion, error
from stillhouse.config import McpServerConfig
from stillhouse.dataset.embeddings.client import embed_batch
from stillhouse.errors import ConfigError
from stillhouse.inference.batch import BatchClient, BatchPace
from stillhouse.inference.budget.prices import listed_price
from stillhouse.inference.completion import Sampling
from stillhouse.inference.endpoint import Endpoint
from stillhouse.inference.failures import RequestFailed
from stillhouse.inference.http_client import HttpClient
from stillhouse.inference.model_server import ModelServer
from stillhouse.tools.mcp_servers.tools import McpTools

KEY = "sk-canary-0123456789"
SAMPLING = Sampling(temperature=0.5, top_p=0.9, max_tokens=32, seed=7)
QUESTION: Any = [{"role": "user", "content": "hi"}]


def _refuse(_: Asked) -> Reply:
    return error(401, f"Incorrect API key provided: {KEY}. You can find your key at https://models.example.")


def _repeat(_: Asked) -> Reply:
    return Reply(completion(f"You are signed in with {KEY}."))


def _ask(url: str, key: str = KEY) -> Any:
    async def main() -> Any:
        async with aclosing(HttpClient(Endpoint(url, "m", "m", key), timeout_s=10)) as client:
            return await client.complete(QUESTION, [], SAMPLING)

    return asyncio.run(main())


def _score(url: str, key: str = KEY) -> Any:
    with closing(ModelServer(url, key, 10)) as server:
        return server.post("/v1/chat/completions", {"messages": QUESTION})


def _embed(url: str, key: str) -> Any:
    async def main() -> Any:
        endpoint = Endpoint(url, "m", "m", key)
        async with aclosing(HttpClient(endpoint, timeout_s=10)) as client:
            return await embed_batch(client, endpoint, ["hi"])

    return asyncio.run(main())


def _price(url: str, key: str) -> Any:
    return asyncio.run(listed_price(Endpoint(url, "m", "m", key)))


def _batch(folder: Path) -> Callable[[str, str], Any]:
    def ask(url: str, key: str) -> Any:
        async def main() -> Any:
            pace = BatchPace(gather_s=0.01, poll_s=0.01)
            async with aclosing(BatchClient(Endpoint(url, "m", "m", key), folder, pace=pace)) as client:
                # What never says that the batch has ended is asked for as long as a batch may take.
                return await asyncio.wait_for(client.complete(QUESTION, [], SAMPLING), 2)

        return asyncio.run(main())

    return ask


def _offer_tools(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], Any]:
    def ask(url: str, key: str) -> Any:
        monkeypatch.setenv("SHOP_KEY", f"Bearer {key}")
        return McpTools([McpServerConfig(name="shop", url=url, headers_env={"Authorization": "SHOP_KEY"})])

    return ask


@pytest.fixture(params=["chat", "score", "embed", "price", "batch", "mcp"])
def ask(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], Any]:
    """One of the clients, which sends a key to an address and returns or raises what it made of the answer."""
    made = {"chat": _ask, "score": _score, "embed": _embed, "price": _price}
    made |= {"batch": _batch(tmp_path), "mcp": _offer_tools(monkeypatch)}
    return made[request.param]


def _everything(ask: Callable[[str, str], Any], url: str, key: str) -> str:
    """What a client returns or raises, with all that led to it."""
    try:
        return repr(ask(url, key))
    except TimeoutError:
        return ""
    except (RequestFailed, ConfigError) as error:
        return "".join(traceback.format_exception(error)) + repr(getattr(error, "failure", ""))


@pytest.mark.parametrize("ask_", [_ask, _score])
def test_a_key_that_a_refusal_repeats_is_taken_out_of_it(ask_: Callable[[str], Any]) -> None:
    with SimulatedProvider(_refuse) as provider, pytest.raises(RequestFailed) as caught:
        ask_(provider.url)
    assert "Incorrect API key provided: " in caught.value.failure.message
    assert KEY not in caught.value.failure.message


@pytest.mark.parametrize("ask_", [_ask, _score])
def test_a_key_that_an_answer_repeats_is_taken_out_of_it(ask_: Callable[[str], Any]) -> None:
    with SimulatedProvider(_repeat) as provider:
        told = str(ask_(provider.url))
    assert "You are signed in with " in told
    assert KEY not in told


def test_a_word_that_stands_for_no_key_is_left_alone() -> None:
    with SimulatedProvider(lambda _: Reply(completion("there is none"))) as provider:
        assert "there is none" in str(_ask(provider.url, key="none"))


@pytest.mark.parametrize("status", [200, 301, 400])
def test_no_client_lets_a_key_pass_in_any_spelling(
    ask: Callable[[str, str], Any], stranger: Any, canary: Any, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    told = " ; ".join(f"{name}: {spelled}" for name, spelled in canary.spellings.items())
    message = json.dumps(
        {**completion("?"), "error": {"message": "?", "code": "?"}} if status == 400 else completion("?")
    )
    stranger.status, stranger.reason, stranger.body = status, f"no {canary.key}", message.replace("?", told).encode()
    stranger.headers = {
        "Location": f"http://127.0.0.1:9/?{canary.spellings['percent']}&{canary.key}",
        "X-Request-Id": f"{canary.key} {canary.spellings['base64']}",
        "Mcp-Session-Id": canary.key,
    }
    with caplog.at_level("DEBUG"):
        written = _everything(ask, stranger.url("/v1"), canary.key)
    assert canary.key in stranger.authorizations[0]
    assert not canary.in_text(written)
    assert not canary.in_text("\n".join(record.getMessage() for record in caplog.records))


def test_an_answer_that_is_no_http_is_not_repeated_with_its_key(ask: Callable[[str, str], Any], canary: Any) -> None:
    async def main() -> str:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with suppress(OSError, asyncio.IncompleteReadError):
                await reader.readuntil(b"\r\n\r\n")
                writer.write(f"{canary.key} is unknown here\r\n\r\n".encode())
                await writer.drain()
            writer.close()

        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
            return await asyncio.to_thread(_everything, ask, url, canary.key)

    assert not canary.in_text(asyncio.run(main()))


def test_an_answer_in_utf_16_hides_no_key(stranger: Any, canary: Any) -> None:
    stranger.body = json.dumps(completion(canary.key)).encode("utf-16")
    written = _everything(_ask, stranger.url("/v1"), canary.key) + _everything(_score, stranger.url("/v1"), canary.key)
    assert not canary.in_text(written)
    assert not canary.in_text(written.replace("\\x00", "").replace("\x00", ""))
