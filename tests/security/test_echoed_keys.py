"""Providers that repeat the key they were sent, in refusals, in answers and in headers, however they spell it."""

import asyncio
import json
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from stillhouse.errors import ConfigError
from stillhouse.inference.failures import RequestFailed
from tests.provider import Reply, SimulatedProvider, completion, error

KEY = "sk-canary-0123456789"
Clients = dict[str, Callable[..., Any]]


@pytest.fixture(params=["chat", "hosted chat", "score", "price", "batch", "hosted batch", "mcp"])
def ask(request: pytest.FixtureRequest, clients: Clients) -> Callable[[str, str], Any]:
    return clients[request.param]


def _everything(ask: Callable[[str, str], Any], url: str, key: str) -> str:
    """Return what a client returns or raises, with all that led to it."""
    try:
        return repr(ask(url, key))
    except TimeoutError:
        return ""
    except (RequestFailed, ConfigError) as error:
        return "".join(traceback.format_exception(error)) + repr(getattr(error, "failure", ""))


@pytest.mark.parametrize("name", ["chat", "hosted chat", "score"])
def test_a_key_that_an_answer_or_a_refusal_repeats_is_taken_out_of_it(clients: Clients, name: str) -> None:
    with SimulatedProvider(lambda _: Reply(completion(f"You are signed in with {KEY}."))) as provider:
        answer = str(clients[name](provider.url, KEY))
    assert "You are signed in with " in answer
    assert KEY not in answer
    refusal = error(401, f"Incorrect API key provided: {KEY}. You can find your key at https://models.example.")
    with SimulatedProvider(lambda _: refusal) as provider, pytest.raises(RequestFailed) as caught:
        clients[name](provider.url, KEY)
    assert "Incorrect API key provided: " in caught.value.failure.message
    assert KEY not in caught.value.failure.message


def test_a_word_that_stands_for_no_key_is_left_alone(clients: Clients) -> None:
    with SimulatedProvider(lambda _: Reply(completion("there is none"))) as provider:
        assert "there is none" in str(clients["chat"](provider.url, "none"))


@pytest.mark.parametrize("status", [200, 301, 400])
def test_no_client_lets_a_key_pass_in_any_spelling(
    ask, stranger, canary, status: int, caplog: pytest.LogCaptureFixture
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


def test_an_answer_that_is_no_http_is_not_repeated_with_its_key(ask, canary) -> None:
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


def test_an_answer_in_utf_16_hides_no_key(clients: Clients, stranger, canary) -> None:
    stranger.body = json.dumps(completion(canary.key)).encode("utf-16")
    written = "".join(
        _everything(clients[name], stranger.url("/v1"), canary.key) for name in ("chat", "hosted chat", "score")
    )
    assert not canary.in_text(written)
    assert not canary.in_text(written.replace("\\x00", "").replace("\x00", ""))
