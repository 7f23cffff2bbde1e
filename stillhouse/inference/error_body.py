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
from stillhouse.inference.providers.provider import OVERFLOW, Meaning
from stillhouse.inference.rate_limit.headers import LimitScope, RateLimits, read_limits, retry_after, told_wait
from stillhouse.types import JsonObject

_CODES: Final = {
    code: meaning for provider in PROVIDERS for meaning, codes in provider.codes.items() for code in codes.split()
}
_WORDINGS: Final = {
    meaning: re.compile("|".join(one.wordings[meaning] for one in PROVIDERS if meaning in one.wordings))
    for meaning in {meaning for provider in PROVIDERS for meaning in provider.wordings}
}
_MAX_WAIT_S: Final = 2 * 3600.0
"""Waits above this are for an allowance of a day or a month."""
_MAX_MESSAGE: Final = 500


def classify(status: int, headers: Mapping[str, str], body: Any, now: datetime) -> Failure:
    """Return the failure that an HTTP answer reports.

    For an error inside a body of HTTP 200 `status` is the one that the body names. `headers` have names in lower case,
    `body` is the parsed JSON or the text that would not parse, and `now` has a time zone.
    """
    error = error_of(body)
    message = _message(status, error, body)
    metadata, details, inner = error.get("metadata"), error.get("details", ""), error.get("innererror")
    named = [*map(error.get, ("code", "type", "status")), inner.get("code") if isinstance(inner, dict) else None]
    codes = {str(code) for code in named if code}
    text = " ".join([message, str(details), str(metadata or ""), *codes]).lower()
    by_code = {_CODES[code] for code in codes & _CODES.keys()}
    by_words = {meaning for meaning, wording in _WORDINGS.items() if wording.search(text)}
    # OpenRouter answers 403 with the reasons when moderation flags a prompt.
    if status == 403 and isinstance(metadata, dict) and "reasons" in metadata:
        by_words.add(FailureKind.CONTENT)
    kind = _kind(status, by_code, by_words, message.lower())
    limits = read_limits(headers, now)
    failure = Failure(
        kind,
        message,
        status,
        limits=limits,
        parameter=_parameter(error),
        context_overflow=kind is FailureKind.PERMANENT and OVERFLOW in by_code | by_words,
        scope=_scope(by_words, limits) if kind is FailureKind.RATE else None,
    )
    return _timed(failure, headers, f"{message} {details}", now)


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


def _kind(status: int, by_code: set[Meaning], by_words: set[Meaning], message: str) -> FailureKind:
    said = by_code | by_words
    is_refused = status in (200, 400, 403, 412, 429)
    is_out_of_money = FailureKind.QUOTA in by_code or (is_refused and FailureKind.QUOTA in by_words)
    is_passing = status in (408, 409, 425) or status >= 500 or status < 400
    rules = (
        (FailureKind.MALFORMED, FailureKind.MALFORMED in by_code),
        (FailureKind.RATE, FailureKind.RATE in by_words),
        (FailureKind.QUOTA, status == 402 or is_out_of_money),
        # A single request above a minute's tokens (OpenAI) can only be refused again.
        (FailureKind.PERMANENT, status == 429 and "request too large" in message),
        # 498 is Groq's for want of capacity.
        (FailureKind.BUSY, status == 498 or FailureKind.BUSY in said),
        (FailureKind.RATE, status in (429, 529) or (status in (200, 503) and FailureKind.RATE in said)),
        (FailureKind.CONTENT, FailureKind.CONTENT in said),
        (FailureKind.PERMANENT, OVERFLOW in said),
        (FailureKind.LENGTH, FailureKind.LENGTH in said),
        (FailureKind.AUTH, status in (401, 403) or FailureKind.AUTH in said),
        (FailureKind.TRANSIENT, is_passing or (status in (400, 422) and FailureKind.TRANSIENT in said)),
    )
    return next((kind for kind, holds in rules if holds), FailureKind.PERMANENT)


def _timed(failure: Failure, headers: Mapping[str, str], text: str, now: datetime) -> Failure:
    """Return the failure with the wait that was asked for, as its kind is by that wait and by `x-should-retry`."""
    kind, message, wait_s = failure.kind, failure.message, retry_after(headers, now)
    # https://github.com/openai/openai-python: `_base_client.py`, which Anthropic's package shares.
    should_retry = headers.get("x-should-retry")
    if kind in (FailureKind.RATE, FailureKind.BUSY, FailureKind.TRANSIENT) and wait_s is None:
        wait_s = told_wait(text)
    if kind is FailureKind.RATE and wait_s is not None and wait_s > _MAX_WAIT_S:
        message = f"{message} (the endpoint asks to wait for {wait_s / 3600:.1f} hours)"
        kind = FailureKind.QUOTA
    elif kind is FailureKind.TRANSIENT and should_retry == "false":
        kind = FailureKind.PERMANENT
    elif failure.is_refusal and should_retry == "true":
        kind = FailureKind.TRANSIENT
    return replace(failure, kind=kind, message=message, retry_after_s=wait_s)


def _parameter(error: JsonObject) -> str | None:
    """Return what an error names as wrong: OpenAI in `param`, pydantic's `loc` at Mistral and others."""
    if isinstance(named := error.get("param"), str):
        return named
    message = error.get("message")
    details = message.get("detail") if isinstance(message, dict) else error.get("detail", message)
    first = details[0] if isinstance(details, list) and details else None
    place = first.get("loc") if isinstance(first, dict) else None
    return ".".join(map(str, place)).removeprefix("body.") if isinstance(place, list) else None


def _scope(by_words: set[Meaning], limits: RateLimits | None) -> LimitScope | None:
    """Return what the rate limit was about: by the error's type or wording, else what its headers show as used up."""
    # In this order: "Rate limit reached for requests" may mention "tokens per min" as well.
    for scope in (LimitScope.CONCURRENCY, LimitScope.TOKENS, LimitScope.REQUESTS):
        if scope in by_words:
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
