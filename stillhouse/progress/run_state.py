"""State of a flow run: its stages, what it does now, and how long it still takes."""

from dataclasses import dataclass, field
from typing import Literal

from stillhouse.progress.state import Fact, NoProgress, RolloutProgress
from stillhouse.types import Trajectory

StageStatus = Literal["done", "cached", "running", "ahead"]


@dataclass(frozen=True, slots=True)
class StageState:
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
    stages: tuple[StageState, ...]
    """In the order in which they run; the present one is `running`."""
    doing: str = ""
    """Work of the present stage apart from its items, such as `loading embedded:teacher`."""
    eta_s: float | None = None
    """Seconds left of the present stage and of all later ones whose length is known; None if unknown."""
    num_unknown: int = 0
    """Later stages that `eta_s` does not include."""
    page: str = ""
    """Address of the run's page; empty without one."""

    @property
    def number(self) -> int:
        """Return the place of the present stage, from 1; the last one's at the end."""
        return min(1 + sum(stage.status in ("done", "cached") for stage in self.stages), len(self.stages))

    @property
    def present(self) -> str:
        """Return the name of the present stage; empty at the end."""
        return next((stage.name for stage in self.stages if stage.status == "running"), "")


class Listener(NoProgress):
    """Shows any stage, and the run that it belongs to; what a listener has no room for it leaves as it is here."""

    def update_run(self, state: RunState) -> None:
        """Show where the run is among its stages."""

    def announce(self, plan: str) -> None:
        """Show a line of what the run will do and pay for."""

    def say(self, doing: str) -> None:
        """Show what keeps the present stage busy apart from its items, such as `loading embedded:teacher`."""

    def show_trajectory(self, stage: str, trajectory: Trajectory) -> None:
        """Show one that has just ended."""
