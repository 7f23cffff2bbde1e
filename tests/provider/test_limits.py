import math

import pytest

from tests.provider.limits import Limiter, Limits, Refusal, Size, Step


def limiter(**limits: object) -> Limiter:
    return Limiter([Step(at_s=0, limits=Limits.model_validate(limits))])


def served(limited: Limiter, now: float, num: int, size: Size = Size()) -> int:
    """Return how many of so many requests at one moment meet no limit, each answered at once."""
    count = 0
    for _ in range(num):
        if limited.refusal(now, 0) or limited.size_refusal(now, size):
            limited.note_refused(now)
            continue
        limited.take(now, size)
        count += 1
    return count


def test_bucket_serves_its_burst_and_then_the_rate() -> None:
    limited = limiter(requests_per_minute=60, burst_requests=5)
    assert served(limited, 0.0, 20) == 5
    assert served(limited, 0.5, 20) == 0
    assert served(limited, 3.0, 20) == 3
    assert limited.refusal(3.25, 0) == Refusal("requests", pytest.approx(0.75))


def test_fixed_windows_serve_all_at_their_start() -> None:
    limited = limiter(requests_per_minute=60, window_s=10)
    assert served(limited, 4.0, 30) == 10
    assert limited.refusal(4.0, 0) == Refusal("requests", 6.0)
    assert served(limited, 9.9, 30) == 0
    assert served(limited, 10.0, 30) == 10


@pytest.mark.parametrize(("counted", "expected"), [("actual", 10), ("max_tokens", 1)])
def test_tokens_are_counted_as_sampled_or_as_allowed(counted: str, expected: int) -> None:
    limited = limiter(tokens_per_minute=6000, burst_tokens=1000, tokens_counted=counted)
    assert served(limited, 0.0, 20, Size(tokens=100, reserved_tokens=1000)) == expected
    refusal = limited.size_refusal(0.0, Size(100, 1000))
    assert refusal is not None
    assert refusal.scope == "tokens"


def test_a_request_larger_than_the_bucket_is_served_by_a_full_one() -> None:
    limited = limiter(tokens_per_minute=6000, burst_tokens=100)
    assert [served(limited, now, 1, Size(tokens=500)) for now in (0.0, 4.9, 5.1)] == [1, 0, 1]


def test_refusals_that_consume_keep_the_bucket_empty() -> None:
    patient = limiter(requests_per_minute=60, burst_requests=1)
    storm = limiter(requests_per_minute=60, burst_requests=1, rejects_consume=True)
    counts = [sum(served(limited, tick / 10, 1) for tick in range(100)) for limited in (patient, storm)]
    assert counts == [10, 1]


def test_concurrency_and_day_are_named() -> None:
    limited = limiter(concurrency=2, requests_per_day=3)
    assert limited.refusal(0.0, 1) is None
    assert getattr(limited.refusal(0.0, 2), "scope", None) == "concurrency"
    assert served(limited, 0.0, 9) == 3
    assert limited.refusal(0.0, 0) == Refusal("day", 3600.0)


def test_a_rival_takes_its_share_and_headers_do_not_tell() -> None:
    limited = limiter(requests_per_minute=60, burst_requests=1, concurrency=4, rival_share=0.5)
    assert sum(served(limited, tick / 10, 1) for tick in range(100)) == 5
    assert limited.standing(10.0)["requests"].limit == 60
    assert limited.refusal(100.0, 2) is not None


def test_limits_change_at_their_time_and_what_was_left_is_kept() -> None:
    steps = [(0, 60.0), (10, 600.0)]
    limited = Limiter(
        [Step(at_s=at_s, limits=Limits(requests_per_minute=rpm, burst_requests=10)) for at_s, rpm in steps]
    )
    assert limited.next_step_s(4.0) == 6.0
    assert served(limited, 9.0, 30) == 10
    # One second at the old rate, one at the new one.
    assert served(limited, 11.0, 30) == 10
    assert limited.next_step_s(11.0) == math.inf
    fallen = Limiter([Step(at_s=0, limits=Limits(requests_per_minute=600)), Step(at_s=1, limits=Limits())])
    assert served(fallen, 0.5, 30) == 10
    assert served(fallen, 1.0, 30) == 30
