from typing import Any

import orjson
import pytest

from stillhouse.testing.headers import HeaderForm, RetryAfter, limit_headers, openai_duration, refuse
from stillhouse.testing.limits import Refusal, Standing

STANDINGS = {"requests": Standing(600, 3.7, 42.0), "tokens": Standing(90_000, 0.0, 0.25)}


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        (
            "openai",
            {
                "x-ratelimit-limit-requests": "600",
                "x-ratelimit-remaining-requests": "3",
                "x-ratelimit-reset-requests": "42s",
                "x-ratelimit-limit-tokens": "90000",
                "x-ratelimit-remaining-tokens": "0",
                "x-ratelimit-reset-tokens": "250ms",
            },
        ),
        (
            "anthropic",
            {
                "anthropic-ratelimit-requests-limit": "600",
                "anthropic-ratelimit-requests-remaining": "3",
                "anthropic-ratelimit-requests-reset": "1970-01-01T00:17:22Z",
                "anthropic-ratelimit-tokens-limit": "90000",
                "anthropic-ratelimit-tokens-remaining": "0",
                "anthropic-ratelimit-tokens-reset": "1970-01-01T00:16:41Z",
            },
        ),
        (
            "openrouter",
            {"X-RateLimit-Limit": "600", "X-RateLimit-Remaining": "3", "X-RateLimit-Reset": "1042000"},
        ),
        (None, {}),
    ],
)
def test_limits_are_told_as_each_provider_does(form: HeaderForm | None, expected: dict[str, str]) -> None:
    assert limit_headers(form, STANDINGS, now=1000.0) == expected


@pytest.mark.parametrize(
    ("seconds", "written"), [(0.0, "0ms"), (0.12, "120ms"), (1.5, "1.5s"), (59, "59s"), (360, "6m0s"), (372, "6m12s")]
)
def test_durations_are_written_as_openai_does(seconds: float, written: str) -> None:
    assert openai_duration(seconds) == written


@pytest.mark.parametrize(("retry_after", "said"), [("whole", "3"), ("exact", "2.100"), (89.0, "89"), (None, None)])
def test_retry_after_says_what_it_is_told_to(retry_after: RetryAfter, said: str | None) -> None:
    reply = refuse(
        Refusal("tokens", 2.1), headers={}, retry_after=retry_after, form="openai", say_why=True, delay_s=0.0
    )
    assert reply.status == 429
    assert reply.headers.get("retry-after") == said


def refused(form: HeaderForm | None, *, say_why: bool) -> dict[str, Any]:
    told = {"X-RateLimit-Limit": "600"}
    reply = refuse(Refusal("tokens", 2.1), headers=told, retry_after=None, form=form, say_why=say_why, delay_s=0.0)
    body: dict[str, Any] = orjson.loads(orjson.dumps(reply.body))
    return body


def test_the_body_names_the_limit_only_when_it_is_to() -> None:
    assert refused("openai", say_why=True)["error"]["type"] == "tokens"
    assert "(TPM)" in refused("anthropic", say_why=True)["error"]["message"]
    assert refused("openrouter", say_why=True)["error"]["metadata"]["headers"] == {"X-RateLimit-Limit": "600"}
    for form in ("openai", "anthropic", "openrouter", None):
        assert "TPM" not in str(refused(form, say_why=False))  # type: ignore[arg-type]
