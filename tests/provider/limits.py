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

Rate = Literal["requests", "tokens"]
Scope = Rate | Literal["concurrency", "day"]
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
        self._quotas: dict[Rate, Quota] = {}
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
        return self._refusal_by("requests", now, 1)

    def size_refusal(self, now: float, size: Size) -> Refusal | None:
        """Return why a request of this size would not be served."""
        self._advance(now)
        return self._refusal_by("tokens", now, self._counted(size))

    def take(self, now: float, size: Size) -> None:
        self._num_served += 1
        for rate, quota in self._quotas.items():
            quota.take(now, 1 if rate == "requests" else self._counted(size))

    def note_refused(self, now: float) -> None:
        if self.limits.rejects_consume and "requests" in self._quotas:
            self._quotas["requests"].take(now, 1, at_most_all=True)

    def standing(self, now: float) -> dict[Rate, Standing]:
        """Return each limited rate as headers report it."""
        return {rate: quota.standing(now) for rate, quota in self._quotas.items()}

    def _refusal_by(self, rate: Rate, now: float, amount: int) -> Refusal | None:
        wait_s = self._quotas[rate].wait_s(now, amount) if rate in self._quotas else 0.0
        return Refusal(rate, wait_s) if wait_s > 0 else None

    def _counted(self, size: Size) -> int:
        return size.tokens if self.limits.tokens_counted == "actual" else size.reserved_tokens

    def _advance(self, now: float) -> None:
        while self._steps and self._steps[0].at_s <= now:
            step = self._steps.pop(0)
            limits = self.limits = step.limits
            before, self._quotas = self._quotas, {}
            rates: dict[Rate, tuple[float | None, float | None, float]] = {
                "requests": (limits.requests_per_minute, limits.burst_requests, 1.0),
                "tokens": (limits.tokens_per_minute, limits.burst_tokens, 0.0),
            }
            for rate, (per_minute, burst, least) in rates.items():
                if per_minute is not None:
                    size = burst if burst is not None else max(per_minute / 60, least)
                    self._quotas[rate] = Quota(per_minute, size, limits.window_s, 1 - limits.rival_share)
                    if rate in before:
                        self._quotas[rate].follow(before[rate], step.at_s)
