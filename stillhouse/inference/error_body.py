"""The failure that the answer of an endpoint reports, in whichever words.

Providers word the same failure in many ways. Codes decide first; where only the wording distinguishes failures, it is
looked for in the messages of all of them, since gateways hand on what their sellers say.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

from stillhouse.inference.failures import Failure, FailureKind
from stillhouse.inference.providers import PROVIDERS
from stillhouse.inference.rate_limit.headers import LimitScope, RateLimits, read_limits, retry_after, told_wait
from stillhouse.types import JsonObject

_CODES: Final = {
    code: kind for provider in PROVIDERS for kind, codes in provider.codes.items() for code in codes.split()
}
_WORDINGS: Final = {
    kind: re.compile("|".join(provider.wordings[kind] for provider in PROVIDERS if kind in provider.wordings))
    for kind in FailureKind
    if any(kind in provider.wordings for provider in PROVIDERS)
}
_OVERFLOW_CODES: Final = frozenset(code for provider in PROVIDERS for code in provider.overflow_codes.split())
_OVERFLOW: Final = re.compile("|".join(provider.overflow for provider in PROVIDERS if provider.overflow))
_BUSY_PHRASES: Final = ("overloaded", "try again later", "temporarily unavailable", "server is busy")
"""Of servers that answer 400 while they have no capacity."""
_MAX_WAIT_S: Final = 2 * 3600.0
"""Waits above this are for an allowance of a day or a month."""
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
    """Return the failure that an HTTP answer reports.

    For an error inside a body of HTTP 200 `status` is the one that the body names. `headers` have names in lower case,
    `body` is the parsed JSON or the text that would not parse, and `now` has a time zone.
    """
    error = error_of(body)
    message = _message(status, error, body)
    inner = error.get("innererror")
    named = [*map(error.get, ("code", "type", "status")), inner.get("code") if isinstance(inner, dict) else None]
    codes = {str(code) for code in named if code}
    limits = read_limits(headers, now)
    failure = Failure(
        _kind(status, codes, error, message.lower()), message, status, limits=limits, parameter=_parameter(error)
    )
    match failure.kind:
        case FailureKind.PERMANENT:
            failure = replace(failure, context_overflow=_is_overflow(codes, message.lower()))
        case FailureKind.RATE:
            failure = replace(failure, scope=_scope(codes, message, limits))
    return _timed(failure, headers, f"{message} {error.get('details', '')}", now)


def error_of(body: Any) -> JsonObject:
    """Return the error object of an answer in any of the usual forms; empty where there is none."""
    if isinstance(body, list) and body:
        body = body[0]
    if not isinstance(body, dict):
        return {}
    error, base = body.get("error"), body.get("base_resp")
    if isinstance(error, dict):
        # Some gateways add one to every answer, and leave it empty.
        return error if any(error.values()) else {}
    if isinstance(error, str):
        return {"message": error}
    if isinstance(base, dict) and base.get("status_code"):
        return {"code": f"base_resp_{base['status_code']}", "message": base.get("status_msg")}
    if body.get("object") == "error" or ("message" in body and "choices" not in body):
        return body
    if "detail" in body and "choices" not in body:
        return {"message": body["detail"]}
    return {}


def _kind(status: int, codes: set[str], error: JsonObject, message: str) -> FailureKind:
    named = {_CODES.get(code) for code in codes}
    if FailureKind.MALFORMED in named:
        return FailureKind.MALFORMED
    metadata = error.get("metadata")
    text = f"{message} {error.get('details', '')} {metadata or ''}".lower()
    worded = {kind for kind, wording in _WORDINGS.items() if wording.search(text)}
    if FailureKind.RATE in worded:
        return FailureKind.RATE
    is_refused = status in (200, 400, 403, 412, 429)
    if status == 402 or FailureKind.QUOTA in named or (is_refused and FailureKind.QUOTA in worded):
        return FailureKind.QUOTA
    # A single request above a minute's tokens (OpenAI) can only be refused again.
    if status == 429 and "request too large" in message:
        return FailureKind.PERMANENT
    # 498 is Groq's for want of capacity.
    if FailureKind.BUSY in named | worded or status == 498:
        return FailureKind.BUSY
    if status in (429, 529) or (status in (200, 503) and FailureKind.RATE in named):
        return FailureKind.RATE
    # OpenRouter answers 403 with the reasons when moderation flags a prompt.
    is_moderated = status == 403 and isinstance(metadata, dict) and "reasons" in metadata
    if FailureKind.CONTENT in named | worded or is_moderated:
        return FailureKind.CONTENT
    if _is_overflow(codes, message):
        return FailureKind.PERMANENT
    if FailureKind.LENGTH in worded:
        return FailureKind.LENGTH
    if status in (401, 403) or FailureKind.AUTH in named | worded:
        return FailureKind.AUTH
    says_busy = status in (400, 422) and any(phrase in message for phrase in _BUSY_PHRASES)
    if status in (408, 409, 425) or status >= 500 or status < 400 or says_busy:
        return FailureKind.TRANSIENT
    return FailureKind.PERMANENT


def _is_overflow(codes: set[str], message: str) -> bool:
    """Return whether an error says that the context is too short.

    A request that is too large for a minute's tokens (Groq's 413) is another thing, and so is a `max_tokens` above
    what the model allows.
    """
    return bool(codes & _OVERFLOW_CODES) or _OVERFLOW.search(message) is not None


def _timed(failure: Failure, headers: Mapping[str, str], text: str, now: datetime) -> Failure:
    """Return the failure with the wait that was asked for, as its kind is by that wait and by `x-should-retry`."""
    kind, wait_s = failure.kind, retry_after(headers, now)
    if kind in (FailureKind.RATE, FailureKind.BUSY, FailureKind.TRANSIENT):
        wait_s = told_wait(text) if wait_s is None else wait_s
        if kind is FailureKind.RATE and wait_s is not None and wait_s > _MAX_WAIT_S:
            message = f"{failure.message} (the endpoint asks to wait for {wait_s / 3600:.1f} hours)"
            failure = replace(failure, kind=FailureKind.QUOTA, message=message, scope=None)
    # https://github.com/openai/openai-python: `_base_client.py`, which Anthropic's package shares.
    if kind is FailureKind.TRANSIENT and headers.get("x-should-retry") == "false":
        failure = replace(failure, kind=FailureKind.PERMANENT)
    if kind is FailureKind.PERMANENT and not failure.context_overflow and headers.get("x-should-retry") == "true":
        failure = replace(failure, kind=FailureKind.TRANSIENT)
    return replace(failure, retry_after_s=wait_s)


def _parameter(error: JsonObject) -> str | None:
    """Return what an error names as wrong: OpenAI in `param`, pydantic's `loc` at Mistral and others."""
    if isinstance(named := error.get("param"), str):
        return named
    message = error.get("message")
    details = message.get("detail") if isinstance(message, dict) else error.get("detail", message)
    first = details[0] if isinstance(details, list) and details else None
    place = first.get("loc") if isinstance(first, dict) else None
    return ".".join(map(str, place)).removeprefix("body.") if isinstance(place, list) else None


def _scope(codes: set[str], message: str, limits: RateLimits | None) -> LimitScope | None:
    """Return what the rate limit was about: by the error's type or wording, else what its headers show as used up."""
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
    raw = metadata.get("raw") if isinstance(metadata, dict) else error.get("failed_generation")
    if raw:
        message += f" ({str(raw)[:_MAX_MESSAGE]})"
    return f"HTTP {status}: {message}"
