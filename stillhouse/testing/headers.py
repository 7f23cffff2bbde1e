"""Rate-limit headers and 429s in the forms of several providers.

OpenAI: https://platform.openai.com/docs/guides/rate-limits (durations like `6m0s`). Anthropic:
https://docs.anthropic.com/en/api/rate-limits (times in RFC 3339). OpenRouter: https://openrouter.ai/docs/api-reference/limits
(milliseconds since 1970, the headers once more in the error's metadata).
"""

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Literal

from stillhouse.testing.limits import Refusal, Scope, Standing
from stillhouse.testing.reply import Reply

HeaderForm = Literal["openai", "anthropic", "openrouter"]
RetryAfter = Literal["whole", "exact"] | float | None
"""What a 429 says in Retry-After: the time to wait in whole seconds or exactly, a fixed time in seconds, or nothing."""

_REASONS: dict[Scope, str] = {
    "requests": "Rate limit reached on requests per min (RPM)",
    "tokens": "Rate limit reached on tokens per min (TPM)",
    "concurrency": "Too many concurrent requests",
    "day": "Rate limit reached on requests per day (RPD)",
}


def limit_headers(form: HeaderForm | None, standings: Mapping[Any, Standing], now: float) -> dict[str, str]:
    """Rate-limit headers.

    Args:
        form: whose; None gives none.
        standings: of `requests` and `tokens`, as far as they are limited.
        now: `time.time()`.
    """
    if form is None:
        return {}
    headers: dict[str, str] = {}
    for scope, standing in standings.items():
        limit, remaining = f"{standing.limit:.0f}", f"{math.floor(standing.remaining)}"
        if form == "openai":
            headers[f"x-ratelimit-limit-{scope}"] = limit
            headers[f"x-ratelimit-remaining-{scope}"] = remaining
            headers[f"x-ratelimit-reset-{scope}"] = openai_duration(standing.reset_s)
        elif form == "anthropic":
            reset = datetime.fromtimestamp(math.ceil(now + standing.reset_s), UTC)
            headers[f"anthropic-ratelimit-{scope}-limit"] = limit
            headers[f"anthropic-ratelimit-{scope}-remaining"] = remaining
            headers[f"anthropic-ratelimit-{scope}-reset"] = reset.strftime("%Y-%m-%dT%H:%M:%SZ")
        elif scope == "requests":
            headers["X-RateLimit-Limit"] = limit
            headers["X-RateLimit-Remaining"] = remaining
            headers["X-RateLimit-Reset"] = f"{(now + standing.reset_s) * 1000:.0f}"
    return headers


def openai_duration(seconds: float) -> str:
    """A duration as OpenAI writes it: `120ms`, `1.5s`, `6m0s`."""
    if seconds < 1:
        return f"{math.ceil(seconds * 1000)}ms"
    minutes, rest = divmod(seconds, 60)
    return f"{minutes:.0f}m{rest:.3g}s" if minutes else f"{rest:.4g}s"


def refuse(
    refusal: Refusal,
    *,
    headers: Mapping[str, str],
    retry_after: RetryAfter,
    form: HeaderForm | None,
    say_why: bool,
    delay_s: float,
) -> Reply:
    """The 429.

    Args:
        refusal: why.
        headers: rate-limit headers.
        retry_after: what Retry-After says.
        form: whose error body.
        say_why: whether the body names the limit.
        delay_s: time before the answer.
    """
    sent = dict(headers)
    if retry_after == "whole":
        sent["retry-after"] = str(max(1, math.ceil(refusal.wait_s)))
    elif retry_after == "exact":
        sent["retry-after"] = f"{refusal.wait_s:.3f}"
    elif retry_after is not None:
        sent["retry-after"] = f"{retry_after:g}"
    reason = _REASONS[refusal.scope] if say_why else "Too Many Requests"
    if form == "openrouter":
        metadata = {"headers": {name: value for name, value in sent.items() if name.startswith("X-")}}
        body: dict[str, Any] = {"error": {"message": reason, "code": 429, "metadata": metadata}}
    elif form == "anthropic":
        body = {"type": "error", "error": {"type": "rate_limit_error", "message": reason}}
    else:
        kind = refusal.scope if say_why else None
        body = {"error": {"message": reason, "type": kind, "param": None, "code": "rate_limit_exceeded"}}
    return Reply(body, 429, sent, delay_s=delay_s)
