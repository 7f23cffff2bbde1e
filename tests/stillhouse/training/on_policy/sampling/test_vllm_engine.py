"""Completions of a server that ends meanwhile, scripted; `tests/outside` kills a real one."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import pytest

from stillhouse.errors import EndpointError
from stillhouse.serving.generation import GenerationRequest
from stillhouse.training.on_policy.sampling.vllm_engine import VllmEngine
from stillhouse.training.on_policy.sampling.vllm_server import ServerLost, VllmServer


class Scripted:
    """A server whose answers are what a function says."""

    root = "http://here"

    def __init__(self, complete: Callable[[Any], Any]) -> None:
        self.complete = complete


def engine(
    complete: Callable[[Any], Any], restore: Callable[[], None], has_weights: Callable[[], bool] = lambda: True
) -> VllmEngine:
    return VllmEngine(cast(VllmServer, Scripted(complete)), "student", 2, restore, has_weights)


def answer(token: int) -> dict[str, Any]:
    choice = {"token_ids": [token], "logprobs": {"token_logprobs": [-0.5]}, "finish_reason": "length"}
    return {"choices": [choice]}


def test_a_server_that_was_lost_is_restored_and_asked_again() -> None:
    steps: list[str] = []

    def complete(body: Any) -> Any:
        steps.append("asked")
        if len(steps) == 1:
            raise ServerLost("reset")
        return answer(7)

    generation = engine(complete, lambda: steps.append("restored")).complete(GenerationRequest([1], 1))
    assert generation.completion_ids == [7]
    assert steps == ["asked", "restored", "asked"]


def test_an_answer_that_came_while_weights_were_restored_is_dropped() -> None:
    is_restoring, has_answered = threading.Event(), threading.Event()
    asked: list[int] = []

    def complete(body: Any) -> Any:
        [prompt] = body["prompt"]
        asked.append(prompt)
        if prompt == 1 and asked.count(1) == 1:
            # By then the other request, too, is on its way.
            while 2 not in asked:
                has_answered.wait(0.01)
            raise ServerLost("reset")
        if prompt == 2 and asked.count(2) == 1:
            assert is_restoring.wait(120)
            has_answered.set()
            return answer(99)
        return answer(prompt)

    def restore() -> None:
        is_restoring.set()
        assert has_answered.wait(120)

    sampled = engine(complete, restore)
    with ThreadPoolExecutor(2) as threads:
        first, second = threads.map(sampled.complete, [GenerationRequest([1], 1), GenerationRequest([2], 1)])
    assert (first.completion_ids, second.completion_ids) == ([1], [2])
    assert sorted(asked) == [1, 1, 2, 2]


def test_an_answer_of_a_server_that_lost_its_weights_is_dropped() -> None:
    restored: list[bool] = []
    tokens = iter([99, 7])
    sampled = engine(lambda body: answer(next(tokens)), lambda: restored.append(True), lambda: bool(restored))
    assert sampled.complete(GenerationRequest([1], 1)).completion_ids == [7]


def test_a_server_that_is_lost_again_and_again_is_given_up() -> None:
    num_restored = []

    def complete(body: Any) -> Any:
        raise ServerLost("the connection was lost: reset")

    with pytest.raises(EndpointError, match=r"http://here was lost 5 times .* reset"):
        engine(complete, lambda: num_restored.append(1)).complete(GenerationRequest([1], 1))
    assert len(num_restored) == 5
