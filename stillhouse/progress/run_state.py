"""State of a flow run: its stages, what it does now, and how long it still takes."""

from dataclasses import dataclass, field
from typing import Final, Literal

from stillhouse.progress.state import Fact, RolloutProgress

StageStatus = Literal["done", "cached", "running", "ahead"]

_WEIGHT: Final = 0.2
"""Of a new estimate against those before it."""


@dataclass(frozen=True, slots=True)
class StageState:
    """One stage of a run."""

    name: str
    status: StageStatus
    seconds: float | None = None
    """Wall time so far; None for a stage that is ahead."""


@dataclass(frozen=True, slots=True)
class Bar:
    """The latest report of one stage."""

    done: int
    total: int | None
    seconds: float
    """Since its first report, until its last."""
    facts: dict[str, Fact] = field(default_factory=dict)
    rollouts: RolloutProgress | None = None
    """Of a stage that samples, in place of facts."""


@dataclass(frozen=True, slots=True)
class RunState:
    """A run between its start and its end."""

    stages: tuple[StageState, ...]
    """In the order in which they run; the present one is `running`."""
    doing: str = ""
    """What the present stage is busy with apart from its items, such as `loading embedded:teacher`."""
    eta_s: float | None = None
    """Seconds left of the present stage and of all later ones whose length is known; None if unknown."""
    num_unknown: int = 0
    """Later stages that `eta_s` does not include."""
    page: str = ""
    """Address of the run's page; empty without one."""

    @property
    def number(self) -> int:
        """The place of the present stage, from 1; the last one's at the end."""
        return min(1 + sum(stage.status in ("done", "cached") for stage in self.stages), len(self.stages))

    @property
    def present(self) -> str:
        """Name of the present stage; empty at the end."""
        return next((stage.name for stage in self.stages if stage.status == "running"), "")


class SettlingEta:
    """The time left, smoothed: single estimates jump with every pause of an endpoint."""

    def __init__(self) -> None:
        self._end: float | None = None

    def update(self, eta_s: float, now: float) -> float:
        """Seconds left from `now` on, given a new estimate of them."""
        end = now + eta_s
        self._end = end if self._end is None else self._end + _WEIGHT * (end - self._end)
        return max(self._end - now, 0.0)

    def left(self, now: float) -> float | None:
        """Seconds left by the estimates so far; None before the first."""
        return None if self._end is None else max(self._end - now, 0.0)
