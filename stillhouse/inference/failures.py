"""The kinds of failures of a request, decided by status and type, and what follows from each.

    rate        the endpoint asks to slow down        waits, costs no attempt
    transient   5xx, a reset, a cut or empty answer   tried again, costs an attempt
    stall       no answer within the time limit       tried again, costs an attempt
    quota       out of money or of a daily allowance  ends the run
    auth        the key is missing or refused         ends the run
    permanent   the request itself is wrong           recorded, never tried again
    content     a filter refused it                   recorded, never tried again
    malformed   the endpoint cannot read what the     tried once more: sampling may mend it; then it is the
                model wrote as a call or as JSON      model's failure

Providers word the same failure in many ways. Codes decide first. Where only the wording distinguishes failures (a
context that is too long, a daily allowance), the phrases are in one table below, each with a test.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

from stillhouse.inference.context_overflow import is_overflow
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
    MALFORMED = "malformed"


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
    """The subject of a rate limit; None if it does not say."""
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


# Numbers are Zhipu's, those behind `base_resp` MiniMax's; malformed ones are Groq's.
_CODES: Final = {
    FailureKind.QUOTA: "insufficient_quota billing_hard_limit_reached billing_not_active 1113 base_resp_1008",
    FailureKind.AUTH: "base_resp_1004 base_resp_2049",
    FailureKind.RATE: "RESOURCE_EXHAUSTED rate_limit_exceeded base_resp_1002 base_resp_1039",
    FailureKind.CONTENT: "content_filter content_policy_violation ResponsibleAIPolicyViolation invalid_prompt 1301 "
    "data_inspection_failed DataInspectionFailed base_resp_1026 base_resp_1027",
    FailureKind.MALFORMED: "tool_use_failed json_validate_failed output_parse_failed",
}
_KINDS: Final = {code: kind for kind, codes in _CODES.items() for code in codes.split()}
_CONTENT_PHRASES: Final = (
    # Qwen, DeepSeek, MiniMax, OpenAI and Azure, where a gateway gives no code; OpenRouter.
    *("datainspectionfailed", "may contain inappropriate content", "content exists risk", "put new_sensitive"),
    *("flagged as potentially violating", "content management policy", "contentpolicyviolation", "content was flagged"),
)
_BUSY_PHRASES: Final = ("overloaded", "try again later", "temporarily unavailable", "server is busy")
"""Of servers that answer 400 while they have no capacity."""
_QUOTA_PHRASES: Final = (
    *("free-models-per-day", "requests per day", "tokens per day", "insufficient balance", "balance is insufficient"),
)
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
    kind = _kind(status, codes, error, message.lower())
    limits = read_limits(headers, now)
    return Failure(
        kind,
        message,
        status,
        retry_after_s=retry_after(headers, now),
        context_overflow=kind is FailureKind.PERMANENT and is_overflow(codes, message.lower()),
        scope=_scope(codes, message, limits) if kind is FailureKind.RATE else None,
        limits=limits,
    )


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
    def says(*phrases: str) -> bool:
        return any(phrase in message for phrase in phrases)

    named = {_KINDS.get(code) for code in codes}
    if status == 402 or FailureKind.QUOTA in named or (status in (403, 429) and says(*_QUOTA_PHRASES)):
        return FailureKind.QUOTA
    # A single request above a minute's tokens (OpenAI) can only be refused again.
    if status == 429 and says("request too large"):
        return FailureKind.PERMANENT
    # 498 is Groq's for want of capacity.
    if status in (429, 498, 529) or (status in (200, 503) and FailureKind.RATE in named):
        return FailureKind.RATE
    if FailureKind.MALFORMED in named:
        return FailureKind.MALFORMED
    # OpenRouter answers 403 with the reasons when moderation flags a prompt.
    metadata = error.get("metadata")
    is_moderated = status == 403 and isinstance(metadata, dict) and "reasons" in metadata
    if FailureKind.CONTENT in named or is_moderated or says(*_CONTENT_PHRASES):
        return FailureKind.CONTENT
    if is_overflow(codes, message):
        return FailureKind.PERMANENT
    if status in (401, 403) or FailureKind.AUTH in named:
        return FailureKind.AUTH
    if status in (408, 409, 425) or status >= 500 or status < 400 or (status in (400, 422) and says(*_BUSY_PHRASES)):
        return FailureKind.TRANSIENT
    return FailureKind.PERMANENT


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
