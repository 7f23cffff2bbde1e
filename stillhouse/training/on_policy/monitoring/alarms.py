"""Ways in which on-policy distillation goes wrong slowly, noticed from the metrics of its steps.

A figure is judged by its mean over 10 measurements, against that over its first 10 or the lowest since:

- lengths explode: trajectories are three times as long as at first;
- entropy collapses: it is below 5 % of what it was at first;
- more than half of the trajectories are cut off, however it was before;
- the KL to the teacher rises: it is twice its lowest mean and 0.2 nats a token above it, which near zero is no noise.

None of them proves an error. A student may have to write more than it did, and one whose teacher is certain becomes
certain too. So each is said once, with what may be behind it, and ends nothing unless that is asked for.
"""

import logging
import math
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from stillhouse.config import OnPolicyConfig
from stillhouse.training.loop.stopping import Alarms
from stillhouse.types import JsonObject

logger = logging.getLogger(__name__)

WINDOW: Final = 10
"""Measurements that a mean is taken over."""
_FEW: Final = 3


@dataclass(slots=True)
class _History:
    """Recent means of one metric."""

    recent: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))
    start: float | None = None
    """Mean of the first window, once it is full."""
    lowest: float | None = None
    """Lowest mean of a window, of which the first are short: what goes wrong at once has nothing else to be told by."""

    @property
    def mean(self) -> float:
        return math.fsum(self.recent) / len(self.recent)

    def add(self, value: float) -> None:
        self.recent.append(value)
        if len(self.recent) >= _FEW:
            self.lowest = self.mean if self.lowest is None else min(self.lowest, self.mean)
        if len(self.recent) == WINDOW and self.start is None:
            self.start = self.mean


@dataclass(frozen=True, slots=True)
class _Alarm:
    """One kind of trouble."""

    kind: str
    figure: str
    """The metric that shows it, by bare name."""
    bound: Literal["at most", "at least"]
    limit: Callable[[float, float], float]
    """Of the mean over the first window, and of the lowest."""
    remedy: str

    def message(self, history: _History) -> str | None:
        """Return figure, start, limit and remedy if the figure is beyond its limit; None before a window is full."""
        if history.start is None or history.lowest is None:
            return None
        limit = self.limit(history.start, history.lowest)
        # Of a mean that is NaN nothing is said.
        if not (history.mean > limit if self.bound == "at most" else history.mean < limit):
            return None
        return (
            f"{self.kind.replace('_', ' ')}: {self.figure} is {history.mean:.4g} over the last {WINDOW} measurements, "
            f"was {history.start:.4g} over the first and {history.lowest:.4g} at its lowest; expected {self.bound} "
            f"{limit:.4g}. {self.remedy}"
        )


_ALARMS: Final = (
    _Alarm(
        "length_explosion",
        "mean_completion_tokens",
        "at most",
        lambda start, _: 3.0 * start,
        "Look for loops on the page of trajectories and in repetition_rate. Lower on_policy.learning_rate, train some "
        "steps of SFT first, or choose a teacher that writes less",
    ),
    _Alarm(
        "entropy_collapse",
        "entropy",
        "at least",
        lambda start, _: 0.05 * start,
        "With a low teacher_kl the teacher is as certain, and all is well. Otherwise lower on_policy.learning_rate or "
        "reward_coef, or raise kl_coef, so that the student keeps exploring",
    ),
    _Alarm(
        "truncation",
        "truncated_share",
        "at most",
        lambda *_: 0.5,
        "What is cut off has no end to learn from. Raise on_policy.max_tokens, or lower learning_rate if it was not so "
        "at step 0; where trajectories never end, see that student and teacher end their turns with the same token",
    ),
    _Alarm(
        "kl_rising",
        "teacher_kl",
        "at most",
        lambda _, lowest: max(2.0 * lowest, lowest + 0.2),
        "Lower on_policy.learning_rate. Where rewards pull the student away from its teacher, raise kl_coef or lower "
        "reward_coef, unless that is what is wanted",
    ),
)


class RolloutAlarms(Alarms):
    """Watches lengths, entropy, truncation and KL.

    Each kind that sounds is logged as a warning once, and reported from then on as `alarm/KIND`: 1.0 for a step at
    which it sounds, 0.0 for others. With `stops` training is to end, rather than go on, while one of them sounds.
    """

    def __init__(self, *, stops: bool) -> None:
        self._stops = stops
        self._histories = {alarm.figure: _History() for alarm in _ALARMS}
        self._said: set[str] = set()
        self.reason_to_stop: str | None = None
        """The alarm of the last step; None where nothing did or training goes on anyway."""

    def observe(self, metrics: Mapping[str, float]) -> dict[str, float]:
        """Take in the metrics of a step; a figure that was not measured stays as it was."""
        for figure, history in self._histories.items():
            if figure in metrics:
                history.add(metrics[figure])
        sounding: dict[str, str] = {}
        for alarm in _ALARMS:
            if message := alarm.message(self._histories[alarm.figure]):
                sounding[alarm.kind] = message
                if alarm.kind not in self._said:
                    logger.warning("%s", message)
        self._said |= sounding.keys()
        why = f"{'. '.join(sounding.values())}. on_policy.watch = warn trains on regardless"
        self.reason_to_stop = why if self._stops and sounding else None
        return {f"alarm/{kind}": float(kind in sounding) for kind in sorted(self._said)}

    def state(self) -> JsonObject:
        """Return what `restore` needs."""
        histories = {
            figure: {"recent": list(history.recent), "start": history.start, "lowest": history.lowest}
            for figure, history in self._histories.items()
        }
        return {"courses": histories, "said": sorted(self._said)}

    def restore(self, state: JsonObject) -> None:
        """Return to how things stood when `state()` was called; the state of `Alarms` begins anew."""
        if not state:
            return
        self._said = set(state["said"])
        self._histories = {
            figure: _History(deque(history["recent"], maxlen=WINDOW), history["start"], history["lowest"])
            for figure, history in state["courses"].items()
        }


def alarms_of(config: OnPolicyConfig) -> Alarms:
    """Return the alarms that `on_policy.watch` asks for."""
    return Alarms() if config.watch == "off" else RolloutAlarms(stops=config.watch == "stop")
