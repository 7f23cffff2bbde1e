"""What both clients guarantee, the package `openai` and the plain one: the same answers, the same failures."""

import asyncio
import gzip
import json
import threading
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import pytest

from stillhouse.inference.completion import Completion, decode_completion, encode_completion
from stillhouse.inference.endpoint import Endpoint
from stillhouse.inference.failures import Failure, FailureKind, RequestFailed
from stillhouse.inference.http_client import HttpClient
from stillhouse.inference.model_client import ModelClient
from stillhouse.inference.openai_client import OpenAIClient
from stillhouse.inference.price import Price
from stillhouse.inference.sampling import ChatRequest, Sampling
from stillhouse.inference.transport import HttpAnswer, open_transport
from stillhouse.tools.calculator import calculator
from tests.provider import ReceivedRequest, Reply, SimulatedProvider, completion, error

SAMPLING = Sampling(temperature=0.5, top_p=0.9, max_tokens=32, seed=7)
CLIENTS: dict[str, Callable[..., HttpClient]] = {"direct": HttpClient, "openai": OpenAIClient}
Ask = Callable[..., Any]


def asked(client: str, url: str, call: Callable[[HttpClient], Any], key: str = "the-key", **limits: Any) -> Any:
    """Return what `call` makes of a client, or the failure that it raises."""

    async def main() -> Any:
        transport = CLIENTS[client](Endpoint(url, "m", "m", key), **{"timeout_s": 5.0, **limits})
        async with aclosing(transport):
            try:
                return await call(transport)
            except RequestFailed as failed:
                return failed.failure

    return asyncio.run(main())


def post(transport: HttpClient) -> Any:
    return transport.post("chat/completions", {"hi": 1})


async def lines(transport: HttpClient) -> list[bytes]:
    return [line async for line in transport.lines("files/f/content")]


@pytest.fixture(params=CLIENTS)
def client(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def ask(client: str) -> Ask:
    def ask(
        url: str, *, sampling: Sampling = SAMPLING, tools: Any = (), timeout_s: float = 5, price: Any = None
    ) -> Completion:
        async def main() -> Completion:
            endpoint = Endpoint(url, "m", "m", "the-key", price)
            model = ModelClient(endpoint, CLIENTS[client](endpoint, timeout_s=timeout_s))
            try:
                return await model.complete(ChatRequest([{"role": "user", "content": "hi"}], list(tools), sampling))
            finally:
                await model.aclose()

        return asyncio.run(main())

    return ask


def failure_of(call: Callable[[], Completion]) -> Failure:
    with pytest.raises(RequestFailed) as caught:
        call()
    return caught.value.failure


def test_what_is_sent_is_what_was_configured_and_nothing_else(ask: Ask) -> None:
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
def test_faults_are_told_apart_and_tried_once(ask: Ask, reply: Reply, kind: str, status: int | None) -> None:
    with SimulatedProvider(lambda request: reply) as provider:
        failure = failure_of(lambda: ask(provider.url, timeout_s=0.5))
        assert len(provider.ledger) == 1
    assert failure.kind is FailureKind(kind)
    assert failure.status == status
    assert not failure.unreachable
    assert failure.retry_after_s == (3.0 if reply.headers else None)


def test_an_answer_is_kept_although_a_header_is_no_utf_8(ask: Ask) -> None:
    with SimulatedProvider(lambda request: Reply(completion("x"), headers={"x-request-id": "\xff1"})) as provider:
        answer = ask(provider.url)
    assert decode_completion(encode_completion(answer)).turn.request_id == "\ufffd1"


@pytest.mark.parametrize("url", ["http://127.0.0.1:9/v1", "nowhere/v1", "ftp://127.0.0.1/v1"])
def test_an_endpoint_that_is_not_there_is_unreachable(ask: Ask, url: str) -> None:
    failure = failure_of(lambda: ask(url))
    assert failure.unreachable
    assert failure.kind is FailureKind.TRANSIENT


def test_a_moved_endpoint_is_not_followed_with_the_key_but_named(ask: Ask) -> None:
    moved = Reply(b"", 308, {"location": "https://elsewhere.example/v1/chat/completions"})
    with SimulatedProvider(lambda request: moved) as provider:
        failure = failure_of(lambda: ask(provider.url))
        assert len(provider.ledger) == 1
    assert failure.kind is FailureKind.PERMANENT
    assert "https://elsewhere.example/v1/chat/completions" in failure.message


def test_a_thousand_requests_are_in_flight_at_once(client: str) -> None:
    async def main(url: str) -> None:
        endpoint = Endpoint(url, "m", "m")
        model = ModelClient(endpoint, CLIENTS[client](endpoint, timeout_s=120))
        try:
            asking = (
                model.complete(ChatRequest([{"role": "user", "content": str(index)}], [], SAMPLING))
                for index in range(1000)
            )
            await asyncio.gather(*asking)
        finally:
            await model.aclose()

    with SimulatedProvider(lambda request: Reply(completion("hi"), delay_s=8.0)) as provider:
        asyncio.run(main(provider.url))
        assert provider.peak_in_flight == 1000


def test_a_proxy_of_the_environment_is_not_used_for_this_machine(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_cost_is_the_endpoints_else_by_price_else_unknown(
    ask: Ask, usage: dict[str, Any], expected: float | None
) -> None:
    with SimulatedProvider(lambda request: Reply({**completion("hello"), "usage": usage})) as provider:
        turn = ask(provider.url, price=Price(prompt=2.0, completion=4.0)).turn
    assert (turn.cost_usd, turn.is_cost_told) == (expected, "cost" in usage)


DENIED = {"error": {"message": "Unsupported value: 'temperature'", "code": "unsupported_value", "param": "temperature"}}
QUOTA = {"error": {"message": "no money", "type": "insufficient_quota", "code": "insufficient_quota"}}
LIMITED = {"retry-after-ms": "1500", "x-ratelimit-limit-requests": "60", "x-ratelimit-remaining-requests": "0"}
FAULTS = {
    "429 with limits": error(429, "slow", headers=LIMITED),
    "no money": Reply(QUOTA, 429),
    "a parameter": Reply(DENIED, 400),
    "a list": Reply(json.dumps([{"error": {"code": 400, "message": "no seed"}}]).encode(), 400),
    "a detail": Reply({"detail": [{"loc": ["body", "seed"], "msg": "no"}]}, 422),
    "401": error(401, "who?"),
    "402": error(402, "pay"),
    "408": error(408, "late"),
    "529": error(529, "overloaded"),
    "created": Reply(completion("x"), 201),
    "nothing": Reply(b"", 204),
    "html": Reply(b"<html>bad gateway</html>", 502, {"Content-Type": "text/html"}),
    "text that is no UTF-8": Reply(b"\xff\xfe broken", 500),
    "a header of bytes": error(500, "oops", headers={"x-odd": "caf\xe9"}),
    "moved": Reply(b"", 307, {"location": "https://elsewhere.example/v1"}),
    "brotli": Reply(b"?", 200, {"content-encoding": "br"}),
    "no gzip": Reply(b"plain", 200, {"content-encoding": "gzip"}),
    "too long": Reply(b"x" * 3_000_000),
    "too long a refusal": Reply(b"x" * 3_000_000, 500),
    "too long once decoded": Reply(gzip.compress(b"x" * 3_000_000), 200, {"content-encoding": "gzip"}),
    "cut": Reply(completion("x"), fault="cut"),
    "reset": Reply(completion("x"), fault="reset"),
    "closed": Reply(completion("x"), fault="close"),
    "hang": Reply(completion("x"), fault="hang"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_both_clients_give_the_same_failure(fault: str) -> None:
    failures = []
    for client in CLIENTS:
        with SimulatedProvider(lambda request: FAULTS[fault]) as provider:
            failures.append(asked(client, provider.url, post, timeout_s=1, max_bytes=1 << 20))
            assert len(provider.ledger) == 1
    assert isinstance(failures[0], Failure)
    assert failures[0] == failures[1]


BODIES = {
    "JSON": json.dumps(completion("hi")).encode(),
    "no JSON": b"it works!",
    "UTF-16": json.dumps(completion("hi")).encode("utf-16"),
    "half a character": b'{"choices": [{"message": {"content": "\\ud83d"}}]}',
}


@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("is_encoded", [False, True], ids=["plain", "gzip"])
def test_both_clients_give_the_same_bytes_headers_and_limits(body: str, is_encoded: bool) -> None:
    content = gzip.compress(BODIES[body]) if is_encoded else BODIES[body]
    headers = {**LIMITED, "x-request-id": "r1", **({"content-encoding": "gzip"} if is_encoded else {})}
    answers = []
    for client in CLIENTS:
        with SimulatedProvider(lambda request: Reply(content, 200, headers)) as provider:
            answers.append(asked(client, provider.url, post))
    assert [answer.content for answer in answers] == [BODIES[body]] * 2
    assert [answer.headers.get("x-request-id") for answer in answers] == ["r1"] * 2
    assert answers[0].limits.requests == answers[1].limits.requests is not None


def test_a_key_that_is_repeated_is_taken_out_of_body_headers_and_refusals(client: str) -> None:
    key = "sk-canary-0123456789"
    told = Reply({"is": key}, 200, {"x-request-id": key})
    with SimulatedProvider(lambda request: told) as provider:
        answer: HttpAnswer = asked(client, provider.url, post, key)
        assert key not in repr(answer)
        assert answer.body() == {"is": "***"}
        assert answer.headers["x-request-id"] == "***"
        provider.script = lambda request: error(401, f"wrong: {key}")
        assert "wrong: ***" in asked(client, provider.url, post, key).message


def test_a_form_with_a_file_is_sent_and_queries_are(client: str, site: Any) -> None:
    site.status, site.body = 200, b'{"id": "f"}'
    content = b"x" * 100_000
    sent = asked(client, site.url("/v1"), lambda one: one.upload("files", "a.jsonl", content, purpose="batch"))
    assert sent.body() == {"id": "f"}
    asked(client, site.url("/v1"), lambda one: one.get("batches", limit="100", after="b"))
    assert site.seen == ["/v1/files", "/v1/batches?limit=100&after=b"]
    (form,) = site.forms
    assert form["fields"] == {"purpose": b"batch", "file": content}
    assert form["name"] == "a.jsonl"
    assert "chunked" not in form["encoding"]


def test_a_file_of_any_length_is_read_line_by_line_through_redirects_without_the_key_elsewhere(
    client: str, site: Any
) -> None:
    big = b"\n".join(b'{"n": %d}' % index for index in range(200_000))
    site.pages["/away"] = (200, {}, big)
    site.redirect("/v1/files/f/content", site.url("/away", "localhost"))
    got = asked(client, site.url("/v1"), lines, max_bytes=1 << 20)
    assert got == big.split(b"\n")
    assert site.authorizations == ["Bearer the-key", ""]
    site.pages.clear()
    assert asked(client, site.url("/v1"), lines).status == 404


def test_a_hosted_endpoint_is_asked_through_the_proxy_of_the_environment(
    client: str, site: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.status, site.body = 200, b"{}"
    monkeypatch.setenv("http_proxy", site.url(""))
    # Of these aiohttp has no use, and httpx2 refuses to start.
    monkeypatch.setenv("ALL_PROXY", "socks://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "inside.example")
    assert asked(client, "http://models.example/v1", post).body() == {}
    assert site.seen == ["http://models.example/v1/chat/completions"]
    assert asked(client, "http://inside.example/v1", post).unreachable


def test_cookies_are_not_kept(client: str, site: Any) -> None:
    site.status, site.body, site.headers = 200, b"{}", {"Set-Cookie": "session=1"}

    async def twice(transport: HttpClient) -> None:
        await post(transport)
        await post(transport)

    asked(client, site.url("/v1"), twice)
    assert site.cookies == ["", ""]


def test_a_client_is_closed_while_requests_are_in_flight(client: str) -> None:
    async def leave(transport: HttpClient) -> Any:
        waiting = asyncio.create_task(post(transport))
        await asyncio.sleep(0.2)
        waiting.cancel()
        return await asyncio.gather(waiting, return_exceptions=True)

    with SimulatedProvider(lambda request: Reply({}, fault="hang")) as provider:
        (error,) = asked(client, provider.url, leave)
    assert isinstance(error, asyncio.CancelledError)


def test_clients_of_several_threads_each_on_a_loop_of_its_own_do_not_wait_for_each_other(client: str) -> None:
    with SimulatedProvider(lambda request: Reply({"ok": True})) as provider:
        got: list[Any] = []
        threads = [threading.Thread(target=lambda: got.append(asked(client, provider.url, post))) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert [answer.body() for answer in got] == [{"ok": True}] * 8


@pytest.fixture
def of_package(site: Any) -> Callable[..., dict[str, str]]:
    """Return the headers that the package sends for an endpoint."""
    site.status, site.body = 200, b"{}"

    def headers(call: Callable[[HttpClient], Any] = post, **endpoint: Any) -> dict[str, str]:
        async def main() -> None:
            asked_as = replace(Endpoint(site.url("/v1"), "m", "m", "the-key", client="openai"), **endpoint)
            async with aclosing(open_transport(asked_as, timeout_s=5)) as transport:
                await call(transport)

        asyncio.run(main())
        last: dict[str, str] = site.headers_seen[-1]
        return last

    return headers


def test_organisation_and_project_come_from_the_variables_of_the_package(
    of_package: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_ORG_ID", "org-1")
    monkeypatch.setenv("OPENAI_PROJECT_ID", "proj-1")
    # Read by the package where it is given no address, and never here.
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    headers = of_package()
    assert (headers["OpenAI-Organization"], headers["OpenAI-Project"]) == ("org-1", "proj-1")
    assert headers["Authorization"] == "Bearer the-key"
    assert headers["Content-Type"] == "application/json"
    assert headers["Accept-Encoding"] == "gzip, deflate"


def test_a_token_is_asked_for_anew_and_taken_out_of_answers(of_package: Any, site: Any) -> None:
    count = 0

    async def token() -> str:
        nonlocal count
        count += 1
        return f"token-{count}-" + "x" * 100

    assert of_package(api_key="", token=token)["Authorization"].startswith("Bearer token-1-x")
    assert of_package(api_key="", token=token)["Authorization"].startswith("Bearer token-2-x")
    seen = of_package(api_key="", token=token, call=lines)
    assert seen["Authorization"].startswith("Bearer token-3-x")
    assert seen["User-Agent"].startswith("AsyncOpenAI/")
    site.status, site.body = 401, b"refused: " + b"x" * 64
    with pytest.raises(RequestFailed, match=r"refused: \*\*\*"):
        of_package(api_key="", token=token)
