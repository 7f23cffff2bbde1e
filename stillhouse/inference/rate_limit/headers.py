"""What an answer's headers say about the limits of an account, and how long they ask to wait.

    OpenAI      x-ratelimit-{limit,remaining,reset}-{requests,tokens}       reset as a duration: "1s", "6m0s", "20ms"
    Anthropic   anthropic-ratelimit-{requests,tokens}-{limit,remaining,reset}   reset as an ISO date
    OpenRouter  x-ratelimit-{limit,remaining,reset}                         reset in milliseconds since 1970

Sources: platform.openai.com/docs/guides/rate-limits, docs.anthropic.com/en/api/rate-limits,
openrouter.ai/docs/api-reference/limits. Other providers write one of these forms.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from enum import StrEnum
from typing import Final


class LimitScope(StrEnum):
    """What a refusal says there was too much of. Closed."""

    REQUESTS = "requests"
    TOKENS = "tokens"
    CONCURRENCY = "concurrency"


@dataclass(frozen=True, slots=True)
class Allowance:
    """One limit of an account as an answer states it; None for what it leaves out."""

    limit: float | None = None
    """Units a minute."""
    remaining: float | None = None
    """Units that may be taken at once."""
    reset_s: float | None = None
    """Seconds until all of the limit is available again."""


@dataclass(frozen=True, slots=True)
class RateLimits:
    """What the headers of one answer state."""

    requests: Allowance | None = None
    tokens: Allowance | None = None


# One look-up each tells whether an answer carries any of the forms.
_OPENAI: Final = ("x-ratelimit-limit-requests", "x-ratelimit-limit-tokens")
_ANTHROPIC: Final = ("anthropic-ratelimit-requests-limit", "anthropic-ratelimit-tokens-limit")
_OPENROUTER: Final = "x-ratelimit-limit"
_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|d|h|m|s)")
_UNIT_S: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_MINUTE_S: Final = 60.0
# OpenRouter's limit may be a day's allowance of free models; what is renewed later than this is no rate.
_MAX_WINDOW_S: Final = 120.0


def read_limits(headers: Mapping[str, str], now: datetime) -> RateLimits | None:
    """The limits that an answer's headers state; None where they state none.

    Args:
        headers: of the answer; names in lower case, or a mapping that ignores case.
        now: for resets given as a date; with a time zone.
    """
    if _OPENAI[0] in headers or _OPENAI[1] in headers:
        requests, tokens = (_openai(headers, unit, now) for unit in ("requests", "tokens"))
    elif _ANTHROPIC[0] in headers or _ANTHROPIC[1] in headers:
        requests, tokens = (_anthropic(headers, unit, now) for unit in ("requests", "tokens"))
    elif _OPENROUTER in headers:
        requests, tokens = _openrouter(headers, now), None
    else:
        return None
    return None if requests is None and tokens is None else RateLimits(requests, tokens)


def retry_after(headers: Mapping[str, str], now: datetime) -> float | None:
    """Seconds the endpoint asks to wait, by `retry-after-ms` or `retry-after` (seconds or a date); None if neither."""
    milliseconds = _number(headers.get("retry-after-ms"))
    if milliseconds is not None:
        return milliseconds / 1000
    text = headers.get("retry-after")
    seconds = _number(text)
    if seconds is not None or text is None:
        return seconds
    try:
        until = parsedate_to_datetime(text)
    except ValueError:
        return None
    if until.tzinfo is None:
        until = until.replace(tzinfo=UTC)
    return max(0.0, (until - now).total_seconds())


def _openai(headers: Mapping[str, str], unit: str, now: datetime) -> Allowance | None:
    return _allowance(
        headers.get(f"x-ratelimit-limit-{unit}"),
        headers.get(f"x-ratelimit-remaining-{unit}"),
        _until(headers.get(f"x-ratelimit-reset-{unit}"), now),
    )


def _anthropic(headers: Mapping[str, str], unit: str, now: datetime) -> Allowance | None:
    name = f"anthropic-ratelimit-{unit}"
    return _allowance(
        headers.get(f"{name}-limit"), headers.get(f"{name}-remaining"), _until(headers.get(f"{name}-reset"), now)
    )


def _openrouter(headers: Mapping[str, str], now: datetime) -> Allowance | None:
    reset_s = _until(headers.get("x-ratelimit-reset"), now)
    if reset_s is not None and reset_s > _MAX_WINDOW_S:
        return None
    return _allowance(headers.get("x-ratelimit-limit"), headers.get("x-ratelimit-remaining"), reset_s)


def _allowance(limit: str | None, remaining: str | None, reset_s: float | None) -> Allowance | None:
    at_most, left = _number(limit), _number(remaining)
    if at_most is None and left is None:
        return None
    return Allowance(at_most if at_most else None, left, reset_s)


def _until(text: str | None, now: datetime) -> float | None:
    """Seconds until a reset: a duration, seconds, a date, or milliseconds or seconds since 1970."""
    if not text:
        return None
    number = _number(text)
    if number is not None:
        epoch_s = number / 1000 if number > 1e11 else number
        return max(0.0, epoch_s - now.timestamp()) if epoch_s > 1e9 else number
    parts = _DURATION.findall(text)
    if parts and "".join(amount + unit for amount, unit in parts) == text:
        return sum(float(amount) * _UNIT_S[unit] for amount, unit in parts)
    try:
        until = datetime.fromisoformat(text)
    except ValueError:
        return None
    return max(0.0, (until if until.tzinfo else until.replace(tzinfo=UTC)).timestamp() - now.timestamp())


def _number(text: str | None) -> float | None:
    try:
        value = float(text) if text is not None else math.nan
    except ValueError:
        return None
    return value if math.isfinite(value) and value >= 0 else None
