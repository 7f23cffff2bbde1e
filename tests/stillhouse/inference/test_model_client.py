import asyncio
import json
import threading
import time
from pathlib import Path
from typing import Any

from stillhouse.inference.endpoint import Endpoint
from stillhouse.inference.http_client import HttpClient
from stillhouse.inference.model_client import ModelClient
from stillhouse.inference.negotiation.book import TERMS_FILE
from stillhouse.inference.price import Price
from stillhouse.inference.sampling import ChatRequest, Sampling
from tests.provider import Reply, SimulatedProvider, completion

HI: list[Any] = [{"role": "user", "content": "hi"}]
PLAIN = Sampling(0.5, 0.9, 32, 7)
WITH_TOP = Sampling(0.5, 0.9, 32, 7, record_top_k=5)


def client_of(url: str, price: Price | None = None) -> ModelClient:
    endpoint = Endpoint(url, "m", "m", price=price)
    return ModelClient(endpoint, HttpClient(endpoint, timeout_s=5))


def test_only_distributions_are_read_in_a_thread_of_their_own() -> None:
    def readers() -> set[str]:
        return {thread.name for thread in threading.enumerate() if thread.name.startswith("distributions")}

    async def main(url: str) -> None:
        client = client_of(url)
        plain = await client.complete(ChatRequest(HI, [], PLAIN))
        assert not readers()
        answers = await asyncio.gather(*(client.complete(ChatRequest(HI, [], WITH_TOP)) for _ in range(8)))
        assert len(readers()) == 1
        assert plain.turn.top_logprobs is None
        assert all(answer.turn.top_logprobs for answer in answers)
        await client.aclose()

    with SimulatedProvider() as provider:
        asyncio.run(main(provider.url))


def test_an_answer_is_charged_by_the_tier_that_it_was_served_in() -> None:
    usage = {"prompt_tokens": 1_000_000, "completion_tokens": 0}
    price = Price(2.0, 4.0, tiers={"flex": Price(1.0, 2.0)}, asked="flex")

    async def tier_and_cost(url: str) -> tuple[str | None, float | None]:
        client = client_of(url, price)
        turn = (await client.complete(ChatRequest(HI, [], PLAIN))).turn
        await client.aclose()
        return turn.service_tier, turn.cost_usd

    for tier, usd in ({"service_tier": "default"}, 2.0), ({"service_tier": "flex"}, 1.0), ({}, 1.0):
        answer = Reply({**completion("hi"), "usage": usage, **tier})
        with SimulatedProvider(lambda request, answer=answer: answer) as provider:
            assert asyncio.run(tier_and_cost(provider.url)) == (tier.get("service_tier"), usd)


def test_what_was_learnt_before_is_read_from_its_file_once(tmp_path: Path) -> None:
    async def main(url: str) -> list[dict[str, Any]]:
        endpoint = Endpoint(url, "m", "m")
        client = ModelClient(endpoint, HttpClient(endpoint, timeout_s=5), folder=tmp_path)
        await client.complete(ChatRequest(HI, [], PLAIN))
        # A file that comes later is of another process, which learnt it for itself.
        entry = {"saved_at": time.time(), "learnt": {"replaced": {"temperature": None}}}
        (tmp_path / TERMS_FILE).write_text(json.dumps({f"{url} m chat/completions": entry}))
        await client.complete(ChatRequest(HI, [], PLAIN))
        await client.aclose()
        return provider.requests

    with SimulatedProvider() as provider:
        assert ["temperature" in body for body in asyncio.run(main(provider.url))] == [True, True]
