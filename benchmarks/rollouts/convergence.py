"""How a client finds a hidden limit and follows it: shares of it, second by second, from the provider's ledger."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from benchmarks.rollouts.process import Second
from tests.provider.limits import Limits, Step

_MEAN_OVER_S: Final = 5
_REACHED: Final = 0.9


@dataclass(frozen=True, slots=True)
class Convergence:
    """How a limit was used, from a time on that is given to finding it."""

    share: float
    """What was served over what the limit allowed."""
    refused_share: float
    """Refused over sent, once converged."""
    refused_share_in_all: float
    """Refused over sent, from the first request on."""
    reached_s: float | None
    """Seconds from the limit's beginning until the mean of five seconds was 90 % of it; None where it never was."""


def follow(seconds: Sequence[Second], steps: Sequence[Step], settle_s: float, end_s: float) -> list[Convergence]:
    """How each of the limits was followed.

    Args:
        seconds: from the ledger.
        steps: the limits and when they came; each limits one thing.
        settle_s: time after each step that does not count for the shares.
        end_s: when the last limit stopped being measured.
    """
    starts = [step.at_s for step in steps]
    convergences = []
    for step, end in zip(steps, [*starts[1:], end_s], strict=True):
        convergences.append(_follow_one(seconds, step, int(step.at_s + settle_s), min(int(end), len(seconds))))
    return convergences


def _follow_one(seconds: Sequence[Second], step: Step, begin: int, end: int) -> Convergence:
    used, allowed = _measure(step.limits)
    shares = [used(second) / allowed for second in seconds]
    since = seconds[int(step.at_s) : end]
    settled = seconds[begin:end]
    return Convergence(
        share=sum(shares[begin:end]) / max(end - begin, 1),
        refused_share=_refused_share(settled),
        refused_share_in_all=_refused_share(since),
        reached_s=_reached_s(shares[int(step.at_s) : end]),
    )


def _measure(limits: Limits) -> tuple[Callable[[Second], float], float]:
    """What of a second the limit counts, and how much of it there may be."""
    if limits.concurrency is not None:
        return (lambda second: second.busy_s), limits.concurrency
    if limits.tokens_per_minute is not None:
        return (lambda second: second.tokens), limits.tokens_per_minute / 60
    if limits.requests_per_minute is not None:
        return (lambda second: second.served), limits.requests_per_minute / 60
    raise ValueError(f"{limits}: expected a limit on requests, tokens or concurrency")


def _refused_share(seconds: Sequence[Second]) -> float:
    refused = sum(second.refused for second in seconds)
    return refused / max(refused + sum(second.served for second in seconds), 1)


def _reached_s(shares: Sequence[float]) -> float | None:
    for end in range(_MEAN_OVER_S, len(shares) + 1):
        if sum(shares[end - _MEAN_OVER_S : end]) / _MEAN_OVER_S >= _REACHED:
            return float(end)
    return None
