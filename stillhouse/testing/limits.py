"""Hidden limits, as a state machine in a time that is passed in.

The same object refuses requests in the provider and, in an event simulation, finds the best that any client could have
done.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from pydantic import Field

from stillhouse.types import FrozenModel

Scope = Literal["requests", "tokens", "concurrency", "day"]
_DAY_S: Final = 3600.0
_ROUNDING: Final = 1e-6


class Limits(FrozenModel):
    """The allowance of a provider at one time; None sets no limit."""

    requests_per_minute: float | None = Field(default=None, gt=0)
    tokens_per_minute: float | None = Field(default=None, gt=0)
    concurrency: int | None = Field(default=None, ge=1)
    requests_per_day: int | None = Field(default=None, ge=1)
    burst_requests: float | None = Field(default=None, gt=0)
    """Size of the bucket of requests; None holds what comes in within a second, and one at least."""
    burst_tokens: float | None = Field(default=None, gt=0)
    """Size of the bucket of tokens; None holds what comes in within a second."""
    window_s: float | None = Field(default=None, gt=0)
    """Length of the fixed windows in which minutes are counted; None has buckets that fill all the time."""
    tokens_counted: Literal["actual", "max_tokens"] = "actual"
    """`max_tokens` counts the prompt and all that the request allows, whatever was sampled (OpenAI's guide)."""
    rejects_consume: bool = False
    """Refused requests count as well (OpenAI's guide)."""
    rival_share: float = Field(default=0.0, ge=0.0, lt=1.0)
    """Share of all limits that another client of the same key uses up; headers still report the whole limit."""


class Step(FrozenModel):
    """From when on limits hold, in seconds after the first request."""

    at_s: float = Field(ge=0)
    limits: Limits


@dataclass(frozen=True, slots=True)
class Size:
    tokens: int = 0
    """Prompt and completion."""
    reserved_tokens: int = 0
    """Prompt and `max_tokens`."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """The reason for which a request is not served, and the time until it could be."""

    scope: Scope
    wait_s: float


@dataclass(frozen=True, slots=True)
class Standing:
    """One limit as headers report it."""

    limit: float
    """Per minute."""
    remaining: float
    reset_s: float
    """Until all of it is there again."""


class Quota:
    """A limited rate: a bucket that fills all the time, or one that is filled anew at the start of each window."""

    def __init__(self, per_minute: float, burst: float, window_s: float | None, share: float) -> None:
        self.per_minute = per_minute
        self._rate = per_minute / 60 * share
        self._window_s = window_s
        self._size = burst if window_s is None else per_minute / 60 * window_s * share
        self._level = self._size
        self._at = 0.0

    def follow(self, old: "Quota", now: float) -> None:
        """Take over what the quota before it had left."""
        old._fill(now)
        self._level, self._at = min(old._level, self._size), now

    def _fill(self, now: float) -> None:
        if self._window_s is None:
            self._level = min(self._size, self._level + (now - self._at) * self._rate)
        elif now // self._window_s > self._at // self._window_s:
            self._level = self._size
        self._at = now

    def wait_s(self, now: float, amount: float) -> float:
        """Return the seconds until `amount` can be taken. More than the whole size is there once the bucket is full."""
        self._fill(now)
        missing = min(amount, self._size) - self._level
        if missing <= _ROUNDING:
            return 0.0
        if self._window_s is None:
            return missing / self._rate
        return (now // self._window_s + 1) * self._window_s - now

    def take(self, now: float, amount: float, *, at_most_all: bool = False) -> None:
        """Use up `amount`; with `at_most_all` never below nothing."""
        self._fill(now)
        self._level -= min(amount, max(self._level, 0.0)) if at_most_all else amount

    def standing(self, now: float) -> Standing:
        self._fill(now)
        full = self._size - self._level
        reset_s = full / self._rate if self._window_s is None else self._window_s - now % self._window_s
        return Standing(self.per_minute, max(self._level, 0.0), reset_s)


class Limiter:
    """Limits that change with time, by steps in the order of their times; before the first there is none."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self._steps = list(steps)
        self.limits = Limits()
        self._requests: Quota | None = None
        self._tokens: Quota | None = None
        self._num_served = 0
        self._advance(0.0)

    def next_step_s(self, now: float) -> float:
        """Return the seconds until the limits change; infinite when they do not."""
        self._advance(now)
        return self._steps[0].at_s - now if self._steps else math.inf

    def refusal(self, now: float, in_flight: int) -> Refusal | None:
        """Return why a request would not be served now whatever its size, with `in_flight` others being served."""
        self._advance(now)
        limits = self.limits
        if limits.requests_per_day is not None and self._num_served >= limits.requests_per_day:
            return Refusal("day", _DAY_S)
        if limits.concurrency is not None and in_flight >= max(1, round(limits.concurrency * (1 - limits.rival_share))):
            return Refusal("concurrency", 1.0)
        if self._requests is not None and (wait_s := self._requests.wait_s(now, 1)) > 0:
            return Refusal("requests", wait_s)
        return None

    def size_refusal(self, now: float, size: Size) -> Refusal | None:
        """Return why a request of this size would not be served."""
        self._advance(now)
        if self._tokens is not None and (wait_s := self._tokens.wait_s(now, self._counted(size))) > 0:
            return Refusal("tokens", wait_s)
        return None

    def take(self, now: float, size: Size) -> None:
        self._num_served += 1
        if self._requests is not None:
            self._requests.take(now, 1)
        if self._tokens is not None:
            self._tokens.take(now, self._counted(size))

    def note_refused(self, now: float) -> None:
        if self.limits.rejects_consume and self._requests is not None:
            self._requests.take(now, 1, at_most_all=True)

    def standing(self, now: float) -> dict[Literal["requests", "tokens"], Standing]:
        """Return each limited rate as headers report it."""
        standings: dict[Literal["requests", "tokens"], Standing] = {}
        if self._requests is not None:
            standings["requests"] = self._requests.standing(now)
        if self._tokens is not None:
            standings["tokens"] = self._tokens.standing(now)
        return standings

    def _counted(self, size: Size) -> int:
        return size.tokens if self.limits.tokens_counted == "actual" else size.reserved_tokens

    def _advance(self, now: float) -> None:
        while self._steps and self._steps[0].at_s <= now:
            step = self._steps.pop(0)
            limits = self.limits = step.limits
            self._requests = _quota(
                limits.requests_per_minute, limits.burst_requests, 1.0, limits, self._requests, step.at_s
            )
            self._tokens = _quota(limits.tokens_per_minute, limits.burst_tokens, 0.0, limits, self._tokens, step.at_s)


def _quota(
    per_minute: float | None, burst: float | None, least: float, limits: Limits, old: Quota | None, now: float
) -> Quota | None:
    if per_minute is None:
        return None
    size = burst if burst is not None else max(per_minute / 60, least)
    quota = Quota(per_minute, size, limits.window_s, 1 - limits.rival_share)
    if old is not None:
        quota.follow(old, now)
    return quota
