import pytest

from tests.provider.headers import RetryAfter, limit_headers, refuse
from tests.provider.limits import Refusal, Standing


@pytest.mark.parametrize(
    ("seconds", "written"),
    [(0.0, "0ms"), (0.12, "120ms"), (1.5, "1.5s"), (59, "59s"), (360, "6m0s"), (372, "6m12s")],
)
def test_limits_are_written_as_openai_does(seconds: float, written: str) -> None:
    assert limit_headers({"tokens": Standing(90_000, 3.7, seconds)}) == {
        "x-ratelimit-limit-tokens": "90000",
        "x-ratelimit-remaining-tokens": "3",
        "x-ratelimit-reset-tokens": written,
    }


@pytest.mark.parametrize(
    ("retry_after", "say_why", "written"),
    [("whole", True, "3"), ("exact", True, "2.100"), (89.0, False, "89"), (None, False, None)],
)
def test_a_refusal_says_when_to_come_back_and_why_if_it_is_to(
    retry_after: RetryAfter, say_why: bool, written: str | None
) -> None:
    reply = refuse(Refusal("tokens", 2.1), headers={}, retry_after=retry_after, say_why=say_why, delay_s=0.0)
    assert (reply.status, reply.headers.get("retry-after")) == (429, written)
    assert ("TPM" in str(reply.body)) is say_why
