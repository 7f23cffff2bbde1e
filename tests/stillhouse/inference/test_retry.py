import random

from stillhouse.inference.retry import backoff_s


def test_full_jitter_grows_to_a_minute_and_respects_retry_after_up_to_ten() -> None:
    rng = random.Random(0)
    for attempt, cap in [(1, 1), (2, 2), (4, 8), (7, 60), (5000, 60)]:
        waits = [backoff_s(attempt, None, rng) for _ in range(300)]
        assert 0 <= min(waits) < 0.2 * cap
        assert 0.8 * cap < max(waits) <= cap
    assert min(backoff_s(1, 5.0, rng) for _ in range(50)) == 5.0
    assert backoff_s(1, 300.0, rng) == 300.0
    assert backoff_s(1, 3600.0, rng) == 600.0
