"""Rate limits and Retry-After in the headers of an answer.

    OpenAI      x-ratelimit-{limit,remaining,reset}-{requests,tokens}       reset as a duration: "1s", "6m0s", "20ms"
    Anthropic   anthropic-ratelimit-{requests,tokens}-{limit,remaining,reset}   reset as an ISO date
                and the same with {input-tokens,output-tokens}; the first binds, as most tokens are read
    Mistral     x-ratelimit-{limit,remaining}-{req,tokens}-minute
    Fireworks   x-ratelimit-{limit,remaining}-tokens-prompt
    OpenRouter  x-ratelimit-{limit,remaining,reset}                         reset in milliseconds since 1970

Sources: platform.openai.com/docs/guides/rate-limits, docs.anthropic.com/en/api/rate-limits,
openrouter.ai/docs/api-reference/limits. Other providers write one of these forms.
"""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from enum import StrEnum
from typing import Final


class LimitScope(StrEnum):
    """The subjects of rate limits. Closed."""

    REQUESTS = "requests"
    TOKENS = "tokens"
    CONCURRENCY = "concurrency"


@dataclass(frozen=True, slots=True)
class Allowance:
    """One limit of an account as an answer states it; None if it does not."""

    limit: float | None = None
    remaining: float | None = None
    """Units that may be taken at once."""


@dataclass(frozen=True, slots=True)
class RateLimits:
    requests: Allowance | None = None
    tokens: Allowance | None = None


# Names of limit and remainder; the first that are there bind.
_REQUESTS: Final = (
    ("x-ratelimit-limit-requests", "x-ratelimit-remaining-requests"),
    ("x-ratelimit-limit-req-minute", "x-ratelimit-remaining-req-minute"),
    ("anthropic-ratelimit-requests-limit", "anthropic-ratelimit-requests-remaining"),
)
_TOKENS: Final = (
    ("x-ratelimit-limit-tokens", "x-ratelimit-remaining-tokens"),
    ("x-ratelimit-limit-tokens-minute", "x-ratelimit-remaining-tokens-minute"),
    ("x-ratelimit-limit-tokens-prompt", "x-ratelimit-remaining-tokens-prompt"),
    ("anthropic-ratelimit-tokens-limit", "anthropic-ratelimit-tokens-remaining"),
    ("anthropic-ratelimit-input-tokens-limit", "anthropic-ratelimit-input-tokens-remaining"),
)
_OPENROUTER: Final = (("x-ratelimit-limit", "x-ratelimit-remaining"),)
_UNIT_S: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_SPAN: Final = (
    r"(\d+(?:\.\d+)?) ?(ms|milli|d|h|m|s)(?:seconds?|econds?|ecs?|in(?:ute)?s?|ours?|rs?|ays?)?(?![a-z])[ ,]*(?:and )?"
)
_TOLD: Final = re.compile(
    rf"(?:retrydelay\W+|(?:try|retry)(?:ing)?(?: again)? (?:in|after) |\bwait(?: for)? )((?:{_SPAN})+)", re.IGNORECASE
)
# OpenRouter's limit may be a daily allowance of free models: one that resets later than this is no rate.
_MAX_WINDOW_S: Final = 120.0


def read_limits(headers: Mapping[str, str], now: datetime) -> RateLimits | None:
    """Return the limits that an answer's headers state; None where they state none.

    Names of headers are in lower case, or `headers` ignores case; `now` has a time zone.
    """
    requests, tokens = _stated(headers, _REQUESTS), _stated(headers, _TOKENS)
    if requests is None and tokens is None:
        reset_s = _until(headers.get("x-ratelimit-reset"), now)
        is_rate = reset_s is None or reset_s <= _MAX_WINDOW_S
        requests = _stated(headers, _OPENROUTER) if is_rate else None
    return None if requests is None and tokens is None else RateLimits(requests, tokens)


def retry_after(headers: Mapping[str, str], now: datetime) -> float | None:
    """Return the seconds to wait by `retry-after-ms` or `retry-after` (seconds or a date); None if neither is there."""
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


def told_wait(text: str) -> float | None:
    """Return the seconds to wait that the text of an error asks for, such as "try again in 1m2s"; None if none.

    Gemini tells it as `retryDelay` in the details, OpenAI and Azure in the message.
    """
    told = _TOLD.search(text)
    return None if told is None else _seconds(told[1])


def _seconds(span: str) -> float:
    parts = re.findall(_SPAN, span, re.IGNORECASE)
    return sum(float(amount) * _UNIT_S[unit.lower().replace("milli", "ms")] for amount, unit in parts)


def _stated(headers: Mapping[str, str], names: Iterable[tuple[str, str]]) -> Allowance | None:
    for limit, remaining in names:
        units, units_left = _number(headers.get(limit)), _number(headers.get(remaining))
        if units is not None or units_left is not None:
            return Allowance(units or None, units_left)
    return None


def _until(text: str | None, now: datetime) -> float | None:
    """Return the seconds until a reset: a duration, seconds, a date, or milliseconds or seconds since 1970."""
    if not text:
        return None
    number = _number(text)
    if number is not None:
        epoch_s = number / 1000 if number > 1e11 else number
        return max(0.0, epoch_s - now.timestamp()) if epoch_s > 1e9 else number
    if re.fullmatch(f"(?:{_SPAN})+", text):
        return _seconds(text)
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
