import random
import threading
from collections.abc import Sequence

import pytest

from stillhouse.inference.failures import Failure, FailureKind, RequestFailed
from stillhouse.training.on_policy.teachers.served.requests import Requests

OOM = Failure(FailureKind.TRANSIENT, "CUDA out of memory", 500)
LATE = Failure(FailureKind.STALL, "no answer within 1 s")
BAD = Failure(FailureKind.PERMANENT, "bad request", 400)
BUSY = Failure(FailureKind.RATE, "slow down", 429, retry_after_s=7.0)
GONE = Failure(FailureKind.TRANSIENT, "connection refused", unreachable=True)
KEY = Failure(FailureKind.AUTH, "no key", 401)


class Server:
    """Doubles numbers, and fails as it is told to."""

    def __init__(self, *failures: Failure, most: int = 10**6, bad: int | None = None) -> None:
        self.failures = list(failures)
        self.most = most
        self.bad = bad
        self.batches: list[list[int]] = []
        self.waits: list[float] = []

    def send(self, batch: Sequence[int]) -> list[int]:
        self.batches.append(list(batch))
        if self.failures:
            raise RequestFailed(self.failures.pop(0))
        if sum(batch) > self.most:
            raise RequestFailed(OOM)
        if self.bad in batch:
            raise RequestFailed(BAD)
        return [2 * item for item in batch]

    def ask(self, items: list[int], batch_tokens: int = 100) -> list[int]:
        requests = Requests(
            self.send,
            lambda item: item,
            batch_tokens=batch_tokens,
            max_in_flight=1,
            sleep=self.waits.append,
            rng=random.Random(0),
        )
        try:
            return requests.start(items).result(10)
        finally:
            requests.stop()


def test_batches_hold_so_many_tokens_and_a_larger_item_goes_alone() -> None:
    server = Server()
    assert server.ask([40, 50, 20, 300, 10, 90], batch_tokens=100) == [80, 100, 40, 600, 20, 180]
    assert server.batches == [[40, 50], [20], [300], [10, 90]]
    assert Server().ask([]) == []


@pytest.mark.parametrize("failure", [OOM, LATE, BAD], ids=["out of memory", "late", "refused"])
def test_a_batch_that_fails_is_cut_in_two(failure: Failure) -> None:
    server = Server(failure)
    assert server.ask([1, 2, 3, 4, 5]) == [2, 4, 6, 8, 10]
    assert server.batches == [[1, 2, 3, 4, 5], [1, 2], [3, 4, 5]]


def test_halves_go_on_until_the_server_has_room() -> None:
    server = Server(most=10)
    assert server.ask([5, 6, 7, 8]) == [10, 12, 14, 16]
    assert max(map(sum, server.batches[-2:])) <= 10


def test_one_item_that_is_refused_is_found_and_not_tried_again() -> None:
    server = Server(bad=3)
    with pytest.raises(RequestFailed, match="bad request"):
        server.ask([1, 2, 3, 4])
    assert server.batches.count([3]) == 1
    assert not server.waits


def test_a_busy_server_is_waited_for_as_long_as_it_asks_and_gets_the_same_batch() -> None:
    server = Server(*[BUSY] * 9)
    assert server.ask([1, 2]) == [2, 4]
    assert server.batches == [[1, 2]] * 10
    assert min(server.waits) >= 7.0


def test_a_server_that_is_busy_for_ever_is_given_up_after_half_an_hour() -> None:
    server = Server(*[BUSY] * 999)
    with pytest.raises(RequestFailed, match="slow down"):
        server.ask([1, 2])
    assert 1800 <= sum(server.waits) <= 1860


def test_a_server_that_is_not_there_gets_the_same_batch_until_it_is_given_up() -> None:
    server = Server(*[GONE] * 3)
    assert server.ask([1, 2]) == [2, 4]
    assert server.batches == [[1, 2]] * 4
    server = Server(*[GONE] * 99)
    with pytest.raises(RequestFailed, match="connection refused"):
        server.ask([1, 2])
    assert len(server.batches) == 6


def test_a_refused_key_ends_it_at_once() -> None:
    server = Server(KEY)
    with pytest.raises(RequestFailed, match="no key"):
        server.ask([1, 2])
    assert len(server.batches) == 1


def test_so_many_batches_are_under_way_at_once_and_answers_keep_their_order() -> None:
    both = threading.Barrier(2, timeout=10)

    def send(batch: Sequence[int]) -> list[int]:
        both.wait()
        return [2 * item for item in batch]

    requests = Requests(send, lambda item: 1, batch_tokens=1, max_in_flight=2)
    assert requests.start([1, 2, 3, 4]).result(10) == [2, 4, 6, 8]
    requests.stop()


def test_stopping_ends_a_wait() -> None:
    waiting = threading.Event()

    def send(batch: Sequence[int]) -> list[int]:
        waiting.set()
        raise RequestFailed(BUSY)

    requests = Requests(send, lambda item: 1, batch_tokens=1, max_in_flight=1)
    future = requests.start([1])
    assert waiting.wait(10)
    requests.stop()
    with pytest.raises(RequestFailed):
        future.result(10)
