"""The kinds of failures of a request, decided by status and type, and what follows from each.

    rate        the endpoint asks to slow down        waits, costs no attempt
    busy        no capacity for a cheaper tier, or    waits, costs no attempt, lowers no limit
                in what the account's others use
    transient   5xx, a reset, a cut or empty answer   tried again, costs an attempt
    stall       no answer within the time limit       tried again, costs an attempt
    quota       out of money or of a daily allowance  ends the run
    auth        the key is missing or refused         ends the run
    permanent   the request itself is wrong           recorded, never tried again
    content     a filter refused it                   recorded, never tried again
    length      `max_tokens` ended it before a word   recorded, never tried again
    malformed   the endpoint cannot read what the     tried once more: sampling may mend it; then it is the
                model wrote as a call or as JSON      model's failure

`error_body` reads them, with the codes and wordings of `providers`.
"""

from dataclasses import dataclass
from enum import StrEnum

from stillhouse.inference.rate_limit.headers import LimitScope, RateLimits
from stillhouse.types import ErrorRecord


class FailureKind(StrEnum):
    """See the module's table. Closed: a new kind is a new member."""

    RATE = "rate"
    BUSY = "busy"
    TRANSIENT = "transient"
    STALL = "stall"
    QUOTA = "quota"
    AUTH = "auth"
    PERMANENT = "permanent"
    CONTENT = "content"
    LENGTH = "length"
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
    parameter: str | None = None
    """The part of the request that the endpoint names as wrong."""
    is_of_settings: bool = False
    """Every request with the same settings is refused so."""

    @property
    def is_refusal(self) -> bool:
        """Return whether the request itself is wrong, otherwise than by its length."""
        return self.kind is FailureKind.PERMANENT and not self.context_overflow

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
