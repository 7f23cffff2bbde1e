from datetime import UTC, datetime

import pytest

from stillhouse.inference.rate_limit.headers import Allowance, RateLimits, read_limits, retry_after

NOW = datetime(2026, 1, 1, 12, 0, 0, tzinfo=UTC)


OPENAI = {
    "x-ratelimit-limit-requests": "600",
    "x-ratelimit-remaining-requests": "599",
    "x-ratelimit-reset-requests": "100ms",
    "x-ratelimit-limit-tokens": "150000",
    "x-ratelimit-remaining-tokens": "149984",
    "x-ratelimit-reset-tokens": "6m0s",
}
ANTHROPIC = {
    "anthropic-ratelimit-requests-limit": "50",
    "anthropic-ratelimit-requests-remaining": "0",
    "anthropic-ratelimit-requests-reset": "2026-01-01T12:00:30Z",
    "anthropic-ratelimit-tokens-limit": "40000",
    "anthropic-ratelimit-tokens-remaining": "39000",
    "anthropic-ratelimit-tokens-reset": "2026-01-01T11:59:00Z",
}


@pytest.mark.parametrize(
    ("headers", "limits"),
    [
        (OPENAI, RateLimits(Allowance(600, 599), Allowance(150_000, 149_984))),
        (ANTHROPIC, RateLimits(Allowance(50, 0), Allowance(40_000, 39_000))),
        ({"x-ratelimit-limit-tokens": "1000"}, RateLimits(None, Allowance(1000, None))),
        ({"content-type": "application/json", "retry-after": "1"}, None),
        ({"x-ratelimit-limit-requests": ""}, None),
        ({"x-ratelimit-limit-requests": "many"}, None),
        ({"x-ratelimit-limit-requests": "-5"}, None),
        ({"x-ratelimit-limit-requests": "nan"}, None),
        ({"x-ratelimit-limit-requests": "inf"}, None),
    ],
)
def test_each_sellers_form_is_read_and_what_is_no_number_states_nothing(
    headers: dict[str, str], limits: RateLimits | None
) -> None:
    assert read_limits(headers, NOW) == limits


@pytest.mark.parametrize(
    ("written", "is_rate"),
    [
        ("1s", True),
        ("1m30.5s", True),
        ("1h2m", False),
        ("20ms", True),
        ("7", True),
        ("3600", False),
        (str(int((NOW.timestamp() + 20) * 1000)), True),
        ("2026-01-01T13:00:00Z", False),
        (str(int((NOW.timestamp() + 3600) * 1000)), False),
        ("soon", True),
    ],
)
def test_a_limit_that_resets_after_minutes_is_no_rate(written: str, is_rate: bool) -> None:
    headers = {"x-ratelimit-limit": "50", "x-ratelimit-remaining": "7", "x-ratelimit-reset": written}
    assert read_limits(headers, NOW) == (RateLimits(Allowance(50, 7), None) if is_rate else None)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "2"}, 2.0),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after-ms": "1500", "retry-after": "9"}, 1.5),
        ({"retry-after": "Thu, 01 Jan 2026 12:00:30 GMT"}, 30.0),
        ({"retry-after": "Thu, 01 Jan 2026 11:00:00 GMT"}, 0.0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "-3"}, None),
        ({"retry-after": "inf"}, None),
    ],
)
def test_retry_after_is_read_in_all_its_forms(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after(headers, NOW) == seconds
