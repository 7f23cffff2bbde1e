import http.client
import json
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from tests.provider import ReceivedRequest, Reply, SimulatedProvider, completion, error
from tests.provider.answers import Service
from tests.provider.limits import Limits, Step


def ask(url: str, text: str = "hello", timeout_s: float = 60, **keys: Any) -> httpx.Response:
    body = {"model": "m", "messages": [{"role": "user", "content": text}], **keys}
    return httpx.post(f"{url}/chat/completions", json=body, timeout=timeout_s)


def limited(**limits: Any) -> tuple[Step, ...]:
    return (Step(at_s=0, limits=Limits(**limits)),)


def test_a_script_sees_the_request_and_how_often_it_came() -> None:
    seen: list[tuple[str, int, int]] = []

    def script(request: ReceivedRequest) -> Reply:
        seen.append((request.body["messages"][0]["content"], request.attempt, request.index))
        return error(500, "no") if request.attempt == 0 else Reply(completion("yes"))

    with SimulatedProvider(script) as provider:
        statuses = [ask(provider.url, text).status_code for text in ("a", "b", "a", "a")]
        assert [entry.status for entry in provider.ledger] == statuses == [500, 500, 200, 200]
        assert [body["messages"][0]["content"] for body in provider.requests] == ["a", "b", "a", "a"]
    assert seen == [("a", 0, 0), ("b", 0, 1), ("a", 1, 2), ("a", 2, 3)]
    assert provider.num_billed == 2
    assert list(provider.billed.values()) == [2]


@pytest.mark.parametrize(
    ("fault", "raised"),
    [
        ("reset", httpx.ReadError),
        ("close", httpx.RemoteProtocolError),
        ("cut", httpx.RemoteProtocolError),
        ("hang", httpx.ReadTimeout),
    ],
)
def test_faults_reach_the_wire(fault: Any, raised: type[Exception]) -> None:
    with SimulatedProvider(lambda _request: Reply(completion("x" * 100), fault=fault)) as provider:
        with pytest.raises(raised):
            httpx.post(f"{provider.url}/chat/completions", json={}, timeout=0.3 if fault == "hang" else 60)
        while provider.in_flight:
            time.sleep(0.01)
        # What never was answered was not billed; whatever else had status 200 was.
        assert provider.num_billed == (fault != "hang")


def test_a_connection_carries_one_request_after_the_other() -> None:
    with SimulatedProvider(lambda request: Reply(completion(str(request.index)))) as provider:
        address = urlsplit(provider.url)
        connection = http.client.HTTPConnection(address.hostname or "", address.port)
        answers = []
        for _ in range(3):
            connection.request("POST", "/v1/chat/completions", body=b"{}")
            answers.append(json.loads(connection.getresponse().read())["choices"][0]["message"]["content"])
        connection.close()
    assert answers == ["0", "1", "2"]


def test_requests_beyond_the_cap_are_refused_and_the_peak_is_kept() -> None:
    service = Service(steps=limited(concurrency=2), retry_after="whole")

    def hang(request: ReceivedRequest) -> Reply:
        return Reply(completion("never"), fault="hang")

    with SimulatedProvider(hang, service=service) as provider, ThreadPoolExecutor() as pool:
        held = [pool.submit(ask, provider.url, timeout_s=2) for _ in range(2)]
        while provider.in_flight < 2:
            time.sleep(0.01)
        refused = [ask(provider.url) for _ in range(3)]
        said = {(one.status_code, one.headers["retry-after"], one.json()["error"]["type"]) for one in refused}
        assert said == {(429, "1", "concurrency")}
        assert (provider.peak_in_flight, provider.num_rejected, provider.num_billed) == (2, 3, 0)
        for one in held:
            assert isinstance(one.exception(), httpx.ReadTimeout)


def test_headers_come_with_answers_and_with_refusals() -> None:
    service = Service(latency_s=0, steps=limited(requests_per_minute=60, burst_requests=2), has_headers=True)
    with SimulatedProvider(service=service) as provider:
        answers = [ask(provider.url) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert [answer.headers["x-ratelimit-remaining-requests"] for answer in answers] == ["1", "0", "0"]
    assert {answer.headers["x-ratelimit-limit-requests"] for answer in answers} == {"60"}
    assert "retry-after" not in answers[-1].headers
