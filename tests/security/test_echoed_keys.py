"""Providers that repeat the key they were sent, in refusals and in answers."""

import asyncio
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest

from benchmarks.simulated_provider import Asked, Reply, SimulatedProvider, completion, error
from stillhouse.rollouts.completion import Sampling
from stillhouse.rollouts.endpoint import Endpoint
from stillhouse.rollouts.failures import RequestFailed
from stillhouse.rollouts.http_client import HttpClient
from stillhouse.training.on_policy.http import ModelServer

KEY = "sk-canary-0123456789"
SAMPLING = Sampling(temperature=0.5, top_p=0.9, max_tokens=32, seed=7)


def _refuse(_: Asked) -> Reply:
    return error(401, f"Incorrect API key provided: {KEY}. You can find your key at https://models.example.")


def _repeat(_: Asked) -> Reply:
    return Reply(completion(f"You are signed in with {KEY}."))


def _ask(url: str, key: str = KEY) -> Any:
    async def main() -> Any:
        client = HttpClient(Endpoint(url, "m", "m", key), timeout_s=10)
        try:
            return await client.complete([{"role": "user", "content": "hi"}], [], SAMPLING)
        finally:
            await client.aclose()

    return asyncio.run(main())


def _score(url: str) -> Any:
    with closing(ModelServer(url, KEY, 10)) as server:
        return server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]})


@pytest.mark.parametrize("ask", [_ask, _score])
def test_a_key_that_a_refusal_repeats_is_taken_out_of_it(ask: Callable[[str], Any]) -> None:
    with SimulatedProvider(_refuse) as provider, pytest.raises(RequestFailed) as caught:
        ask(provider.url)
    assert "Incorrect API key provided: " in caught.value.failure.message
    assert KEY not in caught.value.failure.message


@pytest.mark.parametrize("ask", [_ask, _score])
def test_a_key_that_an_answer_repeats_is_taken_out_of_it(ask: Callable[[str], Any]) -> None:
    with SimulatedProvider(_repeat) as provider:
        told = str(ask(provider.url))
    assert "You are signed in with " in told
    assert KEY not in told


def test_a_word_that_stands_for_no_key_is_left_alone() -> None:
    with SimulatedProvider(lambda _: Reply(completion("there is none"))) as provider:
        assert "there is none" in str(_ask(provider.url, key="none"))
