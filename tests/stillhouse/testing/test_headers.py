from typing import Any

import orjson
import pytest

from stillhouse.testing.headers import HeaderForm, RetryAfter, limit_headers, openai_duration, refuse
from stillhouse.testing.limits import Refusal, Standing
from stillhouse.testing.reply import Reply

STANDINGS = {"requests": Standing(600, 3.7, 42.0), "tokens": Standing(90_000, 0.0, 0.25)}


def by_limit(form: str, requests: tuple[str, ...], tokens: tuple[str, ...]) -> dict[str, str]:
    fields = ("limit", "remaining", "reset")
    values = {"requests": requests, "tokens": tokens}
    return {
        form.format(field, name): value for name in values for field, value in zip(fields, values[name], strict=True)
    }


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        ("openai", by_limit("x-ratelimit-{}-{}", ("600", "3", "42s"), ("90000", "0", "250ms"))),
        (
            "anthropic",
            by_limit(
                "anthropic-ratelimit-{1}-{0}",
                ("600", "3", "1970-01-01T00:17:22Z"),
                ("90000", "0", "1970-01-01T00:16:41Z"),
            ),
        ),
        ("openrouter", {"X-RateLimit-Limit": "600", "X-RateLimit-Remaining": "3", "X-RateLimit-Reset": "1042000"}),
        (None, {}),
    ],
)
def test_limits_are_written_as_each_provider_does(form: HeaderForm | None, expected: dict[str, str]) -> None:
    assert limit_headers(form, STANDINGS, now=1000.0) == expected


@pytest.mark.parametrize(
    ("seconds", "written"), [(0.0, "0ms"), (0.12, "120ms"), (1.5, "1.5s"), (59, "59s"), (360, "6m0s"), (372, "6m12s")]
)
def test_durations_are_written_as_openai_does(seconds: float, written: str) -> None:
    assert openai_duration(seconds) == written


def refused(form: HeaderForm | None = "openai", retry_after: RetryAfter = None, *, say_why: bool = True) -> Reply:
    headers = {"X-RateLimit-Limit": "600"}
    return refuse(
        Refusal("tokens", 2.1), headers=headers, retry_after=retry_after, form=form, say_why=say_why, delay_s=0.0
    )


@pytest.mark.parametrize(("retry_after", "written"), [("whole", "3"), ("exact", "2.100"), (89.0, "89"), (None, None)])
def test_retry_after_is_rounded_exact_fixed_or_left_out(retry_after: RetryAfter, written: str | None) -> None:
    reply = refused(retry_after=retry_after)
    assert (reply.status, reply.headers.get("retry-after")) == (429, written)


def test_the_body_names_the_limit_only_when_it_is_to() -> None:
    def error(form: HeaderForm | None, *, say_why: bool = True) -> dict[str, Any]:
        body: dict[str, Any] = orjson.loads(orjson.dumps(refused(form, say_why=say_why).body))
        return body["error"]

    assert error("openai")["type"] == "tokens"
    assert "(TPM)" in error("anthropic")["message"]
    assert error("openrouter")["metadata"]["headers"] == {"X-RateLimit-Limit": "600"}
    for form in ("openai", "anthropic", "openrouter", None):
        assert "TPM" not in str(error(form, say_why=False))  # type: ignore[arg-type]
