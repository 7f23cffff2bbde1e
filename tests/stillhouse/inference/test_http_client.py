import asyncio
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from stillhouse.inference.completion import Completion, decode_completion, encode_completion
from stillhouse.inference.endpoint import Endpoint
from stillhouse.inference.failures import Failure, FailureKind, RequestFailed
from stillhouse.inference.http_client import HttpClient
from stillhouse.inference.model_client import ModelClient
from stillhouse.inference.price import Price
from stillhouse.inference.sampling import Sampling
from stillhouse.testing import ReceivedRequest, Reply, SimulatedProvider, completion, error
from stillhouse.tools.calculator import calculator

SAMPLING = Sampling(temperature=0.5, top_p=0.9, max_tokens=32, seed=7)
WITH_TOP = replace(SAMPLING, record_top_k=5)


def ask(
    url: str, *, sampling: Sampling = SAMPLING, tools: Any = (), timeout_s: float = 5, price: Any = None
) -> Completion:
    async def main() -> Completion:
        endpoint = Endpoint(url, "m", "m", "the-key", price)
        client = ModelClient(endpoint, HttpClient(endpoint, timeout_s=timeout_s))
        try:
            return await client.complete([{"role": "user", "content": "hi"}], list(tools), sampling)
        finally:
            await client.aclose()

    return asyncio.run(main())


def failure_of(call: Callable[[], Completion]) -> Failure:
    with pytest.raises(RequestFailed) as caught:
        call()
    return caught.value.failure


def test_what_is_sent_is_what_was_configured_and_nothing_else() -> None:
    seen: list[ReceivedRequest] = []

    def script(request: ReceivedRequest) -> Reply:
        seen.append(request)
        return Reply(completion("hello"))

    with SimulatedProvider(script) as provider:
        answer = ask(provider.url, tools=[calculator.schema])
        ask(provider.url, sampling=Sampling(0.0, 1.0, 8, None, record_tokens=True))
    assert answer.message["content"] == "hello"
    assert seen[0].authorization == "Bearer the-key"
    common = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
    sampled = {"temperature": 0.5, "top_p": 0.9, "max_tokens": 32, "seed": 7}
    assert seen[0].body == {**common, **sampled, "tools": [calculator.schema]}
    sampled = {"temperature": 0.0, "top_p": 1.0, "max_tokens": 8}
    assert seen[1].body == {**common, **sampled, "logprobs": True, "return_token_ids": True}


def test_only_distributions_are_read_in_a_thread_of_their_own() -> None:
    def readers() -> set[str]:
        return {thread.name for thread in threading.enumerate() if thread.name.startswith("distributions")}

    async def main(url: str) -> None:
        endpoint = Endpoint(url, "m", "m")
        client = ModelClient(endpoint, HttpClient(endpoint, timeout_s=5))
        plain = await client.complete([{"role": "user", "content": "hi"}], [], SAMPLING)
        assert not readers()
        asked = [client.complete([{"role": "user", "content": "hi"}], [], WITH_TOP) for _ in range(8)]
        answers = await asyncio.gather(*asked)
        assert len(readers()) == 1
        assert plain.turn.top_logprobs is None
        assert all(answer.turn.top_logprobs for answer in answers)
        await client.aclose()

    with SimulatedProvider() as provider:
        asyncio.run(main(provider.url))


@pytest.mark.parametrize(
    ("reply", "kind", "status"),
    [
        (error(429, "slow", headers={"retry-after": "3"}), "rate", 429),
        (error(500, "oops"), "transient", 500),
        (Reply(b"<html>bad gateway</html>", 502), "transient", 502),
        (Reply({"choices": None}), "transient", 200),
        (Reply(completion("x"), fault="cut"), "transient", None),
        (Reply(completion("x"), fault="reset"), "transient", None),
        (Reply(completion("x"), fault="hang"), "stall", None),
    ],
)
def test_faults_are_told_apart_and_tried_once(reply: Reply, kind: str, status: int | None) -> None:
    with SimulatedProvider(lambda request: reply) as provider:
        failure = failure_of(lambda: ask(provider.url, timeout_s=0.5))
        assert len(provider.ledger) == 1
    assert failure.kind is FailureKind(kind)
    assert failure.status == status
    assert not failure.unreachable
    assert failure.retry_after_s == (3.0 if reply.headers else None)


def test_an_answer_is_kept_although_a_header_is_no_utf_8() -> None:
    with SimulatedProvider(lambda request: Reply(completion("x"), headers={"x-request-id": "\xff1"})) as provider:
        answer = ask(provider.url)
    assert decode_completion(encode_completion(answer)).turn.request_id == "\ufffd1"


@pytest.mark.parametrize("url", ["http://127.0.0.1:9/v1", "nowhere/v1", "ftp://127.0.0.1/v1"])
def test_an_endpoint_that_is_not_there_is_unreachable(url: str) -> None:
    failure = failure_of(lambda: ask(url))
    assert failure.unreachable
    assert failure.kind is FailureKind.TRANSIENT


def test_a_moved_endpoint_is_not_followed_with_the_key_but_named() -> None:
    moved = Reply(b"", 308, {"location": "https://elsewhere.example/v1/chat/completions"})
    with SimulatedProvider(lambda request: moved) as provider:
        failure = failure_of(lambda: ask(provider.url))
        assert len(provider.ledger) == 1
    assert failure.kind is FailureKind.PERMANENT
    assert "https://elsewhere.example/v1/chat/completions" in failure.message


def test_a_thousand_requests_are_in_flight_at_once() -> None:
    async def main(url: str) -> None:
        endpoint = Endpoint(url, "m", "m")
        client = ModelClient(endpoint, HttpClient(endpoint, timeout_s=30))
        try:
            asked = (client.complete([{"role": "user", "content": str(index)}], [], SAMPLING) for index in range(1000))
            await asyncio.gather(*asked)
        finally:
            await client.aclose()

    with SimulatedProvider(lambda request: Reply(completion("hi"), delay_s=3.0)) as provider:
        asyncio.run(main(provider.url))
        assert provider.peak_in_flight == 1000


def test_a_proxy_of_the_environment_is_not_used_for_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    with SimulatedProvider(lambda request: Reply(completion("direct"))) as provider:
        assert ask(provider.url).message["content"] == "direct"


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        ({"prompt_tokens": 1_000_000, "completion_tokens": 500_000}, 4.0),
        ({"prompt_tokens": 1_000_000, "completion_tokens": 500_000, "cost": 0.5}, 0.5),
        ({"prompt_tokens": 1_000_000}, None),
    ],
    ids=["by the price", "as the endpoint says", "unknown"],
)
def test_cost_is_the_endpoints_else_by_price_else_unknown(usage: dict[str, Any], expected: float | None) -> None:
    with SimulatedProvider(lambda request: Reply({**completion("hello"), "usage": usage})) as provider:
        turn = ask(provider.url, price=Price(prompt=2.0, completion=4.0)).turn
    assert (turn.cost_usd, turn.is_cost_told) == (expected, "cost" in usage)


def test_an_answer_is_charged_by_the_tier_that_it_was_served_in() -> None:
    usage = {"prompt_tokens": 1_000_000, "completion_tokens": 0}
    price = Price(2.0, 4.0, tiers={"flex": Price(1.0, 2.0)}, asked="flex")
    for tier, usd in ({"service_tier": "default"}, 2.0), ({"service_tier": "flex"}, 1.0), ({}, 1.0):
        with SimulatedProvider(
            lambda request, tier=tier: Reply({**completion("hi"), "usage": usage, **tier})
        ) as provider:
            turn = ask(provider.url, price=price).turn
        assert (turn.cost_usd, turn.service_tier) == (usd, tier.get("service_tier"))
