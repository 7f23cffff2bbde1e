"""The kinds of failures of a request, decided by status and type, and what follows from each.

    rate        the endpoint asks to slow down        waits, costs no attempt
    transient   5xx, a reset, a cut or empty answer   tried again, costs an attempt
    stall       no answer within the time limit       tried again, costs an attempt
    quota       out of money or of a daily allowance  ends the run
    auth        the key is missing or refused         ends the run
    permanent   the request itself is wrong           recorded, never tried again
    content     a filter refused it                   recorded, never tried again

Providers word the same failure in many ways. Where only the wording distinguishes them (a context that is too long, a
daily allowance), the phrases are in one table below, each with a test.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

from stillhouse.inference.rate_limit.headers import LimitScope, RateLimits, read_limits, retry_after
from stillhouse.types import ErrorRecord, JsonObject


class FailureKind(StrEnum):
    """See the module's table. Closed: a new kind is a new member."""

    RATE = "rate"
    TRANSIENT = "transient"
    STALL = "stall"
    QUOTA = "quota"
    AUTH = "auth"
    PERMANENT = "permanent"
    CONTENT = "content"


@dataclass(frozen=True, slots=True)
class Failure:
    kind: FailureKind
    message: str
    status: int | None = None
    """HTTP status, or the status in a body of HTTP 200; None if there was no answer."""
    retry_after_s: float | None = None
    """Least wait that the endpoint asked for."""
    context_overflow: bool = False
    """The conversation is longer than the model's context."""
    unreachable: bool = False
    """No connection: refused, or the name is unknown."""
    scope: LimitScope | None = None
    """What a rate limit was about; None if it does not say."""
    limits: RateLimits | None = None
    """The limits by the answer's headers."""

    def record(self) -> ErrorRecord:
        kept: ErrorRecord = {"kind": self.kind.value, "message": self.message}
        if self.status is not None:
            kept["status"] = self.status
        return kept


class RequestFailed(Exception):
    """A request that gave no completion. It never leaves the engine."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


_QUOTA_CODES: Final = frozenset({"insufficient_quota", "billing_hard_limit_reached", "billing_not_active"})
_CONTENT_CODES: Final = frozenset({"content_filter", "content_policy_violation"})
_CONTEXT_CODES: Final = frozenset({"context_length_exceeded", "exceed_context_size_error"})
_RATE_CODES: Final = frozenset({"RESOURCE_EXHAUSTED", "rate_limit_exceeded"})
_CONTEXT_PHRASES: Final = (
    *("maximum context length", "prompt is too long", "exceeds the available context size"),
    # vLLM of a prompt that fills the context to its last token; no request asks for less than one.
    "max_tokens must be at least 1",
)
_DAILY_PHRASES: Final = ("free-models-per-day", "requests per day", "tokens per day")
# In this order: "Rate limit reached for requests" may mention "tokens per min" as well.
_SCOPE_PHRASES: Final = (
    (LimitScope.CONCURRENCY, ("concurren", "in flight", "at once", "simultaneous", "parallel requests", "overloaded")),
    (
        LimitScope.TOKENS,
        ("tokens per min", "(tpm)", "tokens_per_min", "token rate", "tokens per second", "input tokens"),
    ),
    (LimitScope.REQUESTS, ("requests per min", "(rpm)", "requests_per_min", "request rate", "requests per second")),
)
_MAX_MESSAGE: Final = 500


def classify(status: int, headers: Mapping[str, str], body: Any, now: datetime) -> Failure:
    """The failure that an HTTP answer reports.

    For an error inside a body of HTTP 200 `status` is the one that the body names. `headers` have names in lower case,
    `body` is the parsed JSON or the text that would not parse, and `now` has a time zone.
    """
    error = error_of(body)
    message = _message(status, error, body)
    codes = {str(error[key]) for key in ("code", "type", "status") if error.get(key) is not None}
    kind = _kind(status, codes, error, message.lower())
    limits = read_limits(headers, now)
    return Failure(
        kind,
        message,
        status,
        retry_after_s=retry_after(headers, now),
        context_overflow=kind is FailureKind.PERMANENT
        and (bool(codes & _CONTEXT_CODES) or any(phrase in message.lower() for phrase in _CONTEXT_PHRASES)),
        scope=_scope(codes, message, limits) if kind is FailureKind.RATE else None,
        limits=limits,
    )


def error_of(body: Any) -> JsonObject:
    """The error object of an answer in any of the usual forms; empty where there is none."""
    if isinstance(body, list) and body:
        body = body[0]
    if not isinstance(body, dict):
        return {}
    error = body.get("error")
    if isinstance(error, dict):
        return error
    if isinstance(error, str):
        return {"message": error}
    if body.get("object") == "error" or ("message" in body and "choices" not in body):
        return body
    return {}


def _kind(status: int, codes: set[str], error: JsonObject, message: str) -> FailureKind:
    is_daily = any(phrase in message for phrase in _DAILY_PHRASES)
    if status == 402 or codes & _QUOTA_CODES or (status == 429 and is_daily):
        return FailureKind.QUOTA
    if status in (429, 529) or (status == 503 and codes & _RATE_CODES):
        return FailureKind.RATE
    # OpenRouter answers 403 with the reasons when moderation flags a prompt.
    metadata = error.get("metadata")
    is_moderated = status == 403 and isinstance(metadata, dict) and "reasons" in metadata
    if codes & _CONTENT_CODES or is_moderated:
        return FailureKind.CONTENT
    if status in (401, 403):
        return FailureKind.AUTH
    if status in (408, 409, 425) or status >= 500 or status < 400:
        return FailureKind.TRANSIENT
    return FailureKind.PERMANENT


def _scope(codes: set[str], message: str, limits: RateLimits | None) -> LimitScope | None:
    """What the rate limit was about: by the error's type or wording, else what its headers show as used up."""
    text = " ".join([*codes, message]).lower()
    for scope, phrases in _SCOPE_PHRASES:
        if any(phrase in text for phrase in phrases):
            return scope
    if limits is None:
        return None
    stated = {LimitScope.REQUESTS: limits.requests, LimitScope.TOKENS: limits.tokens}
    used_up = [scope for scope, allowance in stated.items() if allowance and allowance.remaining == 0]
    return used_up[0] if len(used_up) == 1 else None


def _message(status: int, error: JsonObject, body: Any) -> str:
    message = error.get("message")
    if not isinstance(message, str) or not message:
        message = str(body)[:_MAX_MESSAGE] if body else "no body"
    metadata = error.get("metadata")
    if isinstance(metadata, dict) and metadata.get("raw"):
        message += f" ({str(metadata['raw'])[:_MAX_MESSAGE]})"
    return f"HTTP {status}: {message}"
