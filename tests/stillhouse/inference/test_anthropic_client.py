import asyncio
from contextlib import aclosing
from typing import Any

import pytest

from stillhouse.inference.anthropic_client import AnthropicClient
from stillhouse.inference.endpoint import Endpoint
from stillhouse.inference.failures import Failure, FailureKind, RequestFailed
from stillhouse.inference.transport import HttpAnswer
from tests.fake_messages import refused
from tests.provider import ReceivedRequest, Reply, SimulatedProvider

KEY = "sk-ant-of-some-length"


def post(url: str, **limits: Any) -> HttpAnswer:
    async def main() -> HttpAnswer:
        client = AnthropicClient(Endpoint(url, "m", "m", KEY), **{"timeout_s": 10, **limits})
        async with aclosing(client):
            return await client.post("messages", {"model": "m", "é": [1.0]})

    return asyncio.run(main())


def failure(reply: Reply, **limits: Any) -> tuple[Failure, int]:
    """Return how a request fails, and how often it was sent."""
    with SimulatedProvider(lambda request: reply) as provider, pytest.raises(RequestFailed) as failed:
        post(provider.url, **limits)
    assert KEY not in str(failed.value) + repr(failed.value.__cause__)
    return failed.value.failure, len(provider.ledger)


def test_a_request_is_sent_once_as_it_is_with_the_key() -> None:
    seen: list[ReceivedRequest] = []

    def script(request: ReceivedRequest) -> Reply:
        seen.append(request)
        return Reply({"id": KEY}, headers={"Request-Id": "r1"})

    with SimulatedProvider(script) as provider:
        answer = post(provider.url)
    assert [(request.path, request.raw) for request in seen] == [("/v1/messages", '{"model":"m","é":[1.0]}'.encode())]
    assert KEY in seen[0].authorization
    assert answer.body() == {"id": "***"}
    assert answer.headers["request-id"] == "r1"


@pytest.mark.parametrize(
    ("kind", "status", "expected"),
    [
        ("overloaded_error", 529, FailureKind.RATE),
        ("rate_limit_error", 429, FailureKind.RATE),
        ("authentication_error", 401, FailureKind.AUTH),
        ("billing_error", 402, FailureKind.QUOTA),
        ("invalid_request_error", 400, FailureKind.PERMANENT),
        ("api_error", 500, FailureKind.TRANSIENT),
    ],
)
def test_a_refusal_is_read_and_not_tried_again_by_the_package(kind: str, status: int, expected: FailureKind) -> None:
    seen, num_sent = failure(refused(kind, f"no, {KEY}", status))
    assert (seen.kind, seen.status, num_sent) == (expected, status, 1)
    assert "no, ***" in seen.message


def test_a_redirect_is_not_followed() -> None:
    seen, num_sent = failure(Reply(b"", 307, headers={"Location": "http://127.0.0.1:9/v1/messages"}))
    assert (seen.kind, num_sent) == (FailureKind.PERMANENT, 1)


def test_a_long_answer_is_not_read_to_its_end() -> None:
    seen, _ = failure(Reply(b"x" * 200_000), max_bytes=100_000)
    assert seen.kind is FailureKind.PERMANENT


@pytest.mark.parametrize(("fault", "kind"), [("reset", FailureKind.TRANSIENT), ("hang", FailureKind.STALL)])
def test_a_lost_or_silent_connection_is_told_apart(fault: Any, kind: FailureKind) -> None:
    seen, num_sent = failure(Reply({}, fault=fault), timeout_s=0.3)
    assert (seen.kind, num_sent) == (kind, 1)


def test_nobody_there_is_unreachable() -> None:
    with pytest.raises(RequestFailed) as failed:
        post("http://127.0.0.1:9/v1")
    assert failed.value.failure.unreachable
