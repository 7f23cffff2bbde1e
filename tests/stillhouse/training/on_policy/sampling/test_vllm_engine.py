"""Completions of servers that end meanwhile, scripted; `tests/outside` kills a real one."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, cast

import pytest

from stillhouse.errors import EndpointError
from stillhouse.serving.generation import GenerationRequest
from stillhouse.training.on_policy.sampling.sampling_server import SamplingServer
from stillhouse.training.on_policy.sampling.server_pool import ServerPool
from stillhouse.training.on_policy.sampling.vllm_engine import VllmEngine
from stillhouse.training.on_policy.sampling.vllm_server import ServerLost


class Scripted:
    """A server whose answers, and whose weights once it is back, are what functions say."""

    num_losses = 0

    def __init__(
        self,
        complete: Callable[[Any], Any],
        load: Callable[[], object] = lambda: None,
        has_weights: Callable[[], bool] = lambda: True,
        name: str = "here",
    ) -> None:
        self.root = f"http://{name}"
        self._complete, self._load, self.has_weights = complete, load, has_weights
        self.num_under_way = 0
        self.most_under_way = 0
        self._lock = threading.Lock()

    @contextmanager
    def asked(self) -> Iterator[int]:
        with self._lock:
            self.num_under_way += 1
            self.most_under_way = max(self.most_under_way, self.num_under_way)
        yield 0
        with self._lock:
            self.num_under_way -= 1

    def complete(self, version: int, body: Any) -> Any:
        return self._complete(body)

    def versions(self, choice: Any, asked: int, count: int) -> list[int]:
        return [asked] * count

    def load(self, version: int) -> None:
        self._load()

    def wait(self) -> None: ...


def engine(*servers: Scripted, max_concurrent: int = 2) -> VllmEngine:
    pool = ServerPool([cast(SamplingServer, server) for server in servers], version=0)
    return VllmEngine(pool, max_concurrent)


def answer(token: int) -> dict[str, Any]:
    choice = {"token_ids": [token], "logprobs": {"token_logprobs": [-0.5]}, "finish_reason": "length"}
    return {"choices": [choice]}


def lose(body: Any) -> Any:
    raise ServerLost("the connection was lost: reset")


def test_a_server_that_was_lost_is_given_its_weights_and_asked_again() -> None:
    steps: list[str] = []

    def complete(body: Any) -> Any:
        steps.append("asked")
        return lose(body) if len(steps) == 1 else answer(7)

    sampled = engine(Scripted(complete, lambda: steps.append("loaded")))
    assert sampled.complete(GenerationRequest([1], 1)).completion_ids == [7]
    assert steps == ["asked", "loaded", "asked"]


def test_an_answer_that_came_while_weights_were_loaded_again_is_dropped() -> None:
    is_loading, has_answered = threading.Event(), threading.Event()
    asked: list[int] = []

    def complete(body: Any) -> Any:
        [prompt] = body["prompt"]
        asked.append(prompt)
        if prompt == 1 and asked.count(1) == 1:
            # By then the other request, too, is on its way.
            while 2 not in asked:
                has_answered.wait(0.01)
            return lose(body)
        if prompt == 2 and asked.count(2) == 1:
            assert is_loading.wait(120)
            has_answered.set()
            return answer(99)
        return answer(prompt)

    def load() -> None:
        is_loading.set()
        assert has_answered.wait(120)

    sampled = engine(Scripted(complete, load))
    with ThreadPoolExecutor(2) as threads:
        first, second = threads.map(sampled.complete, [GenerationRequest([1], 1), GenerationRequest([2], 1)])
    assert (first.completion_ids, second.completion_ids) == ([1], [2])
    assert sorted(asked) == [1, 1, 2, 2]


def test_an_answer_of_a_server_that_lost_its_weights_is_dropped() -> None:
    loaded: list[bool] = []
    tokens = iter([99, 7])
    server = Scripted(lambda body: answer(next(tokens)), lambda: loaded.append(True), lambda: bool(loaded))
    assert engine(server).complete(GenerationRequest([1], 1)).completion_ids == [7]


def test_a_request_with_which_servers_are_lost_again_and_again_is_given_up() -> None:
    num_loaded: list[int] = []
    with pytest.raises(EndpointError, match=r"http://here was lost 5 times .* reset"):
        engine(Scripted(lose, lambda: num_loaded.append(1))).complete(GenerationRequest([1], 1))


def test_requests_of_a_lost_server_go_to_the_others_and_all_that_are_away_are_named() -> None:
    def refuse() -> None:
        raise EndpointError("no memory at all")

    lost = Scripted(lose, refuse, name="lost")
    assert engine(lost, Scripted(lambda body: answer(7))).complete(GenerationRequest([1], 1)).completion_ids == [7]

    def say() -> None:
        raise EndpointError("another disk")

    gone = engine(Scripted(lose, refuse), Scripted(lose, say))
    with pytest.raises(EndpointError, match=r"(?s)no memory at all.*another disk|another disk.*no memory"):
        gone.complete(GenerationRequest([1], 1))


def test_a_slow_server_is_given_less() -> None:
    is_over = threading.Event()
    served: Counter[str] = Counter()

    def slow(body: Any) -> Any:
        served["slow"] += 1
        assert is_over.wait(120)
        return answer(1)

    def fast(body: Any) -> Any:
        served["fast"] += 1
        if served["fast"] == 30:
            is_over.set()
        return answer(2)

    sampled = engine(Scripted(slow), Scripted(fast), max_concurrent=4)
    for number in range(34):
        sampled.submit(GenerationRequest([number], 1))
    num_done = 0
    while num_done < 34:
        num_done += len(sampled.step())
    assert served["slow"] <= 4
