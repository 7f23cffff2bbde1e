"""Rate-limit headers and 429s in OpenAI's form: https://platform.openai.com/docs/guides/rate-limits."""

import math
from collections.abc import Mapping
from typing import Any, Literal

from tests.provider.limits import Refusal, Scope, Standing
from tests.provider.reply import Reply

RetryAfter = Literal["whole", "exact"] | float | None
"""Retry-After of a 429: the time to wait in whole seconds or exactly, a fixed time in seconds, or nothing."""

_REASONS: dict[Scope, str] = {
    "requests": "Rate limit reached on requests per min (RPM)",
    "tokens": "Rate limit reached on tokens per min (TPM)",
    "concurrency": "Too many concurrent requests",
    "day": "Rate limit reached on requests per day (RPD)",
}


def limit_headers(standings: Mapping[Any, Standing]) -> dict[str, str]:
    headers: dict[str, str] = {}
    for scope, standing in standings.items():
        headers[f"x-ratelimit-limit-{scope}"] = f"{standing.limit:.0f}"
        headers[f"x-ratelimit-remaining-{scope}"] = f"{math.floor(standing.remaining)}"
        headers[f"x-ratelimit-reset-{scope}"] = _duration(standing.reset_s)
    return headers


def _duration(seconds: float) -> str:
    """Return a duration as OpenAI writes it: `120ms`, `1.5s`, `6m0s`."""
    if seconds < 1:
        return f"{math.ceil(seconds * 1000)}ms"
    minutes, rest = divmod(seconds, 60)
    return f"{minutes:.0f}m{rest:.3g}s" if minutes else f"{rest:.4g}s"


def refuse(
    refusal: Refusal, *, headers: Mapping[str, str], retry_after: RetryAfter, say_why: bool, delay_s: float
) -> Reply:
    """Return the 429 after `delay_s`; with `say_why` its body names the limit."""
    sent = dict(headers)
    if retry_after == "whole":
        sent["retry-after"] = str(max(1, math.ceil(refusal.wait_s)))
    elif retry_after == "exact":
        sent["retry-after"] = f"{refusal.wait_s:.3f}"
    elif retry_after is not None:
        sent["retry-after"] = f"{retry_after:g}"
    reason, kind = (_REASONS[refusal.scope], refusal.scope) if say_why else ("Too Many Requests", None)
    body = {"error": {"message": reason, "type": kind, "param": None, "code": "rate_limit_exceeded"}}
    return Reply(body, 429, sent, delay_s=delay_s)
