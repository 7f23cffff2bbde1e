"""A listener that keeps what it is told, and a clock that tests set."""

from stillhouse.progress.run_state import Listener, RunState
from stillhouse.progress.state import RolloutProgress


class Shown(Listener):
    def __init__(self) -> None:
        self.states: list[tuple[str, RolloutProgress]] = []
        self.runs: list[RunState] = []
        self.announced: list[str] = []

    def update_rollouts(self, stage: str, state: RolloutProgress) -> None:
        self.states.append((stage, state))

    def update_run(self, state: RunState) -> None:
        self.runs.append(state)

    def announce(self, plan: str) -> None:
        self.announced.append(plan)

    def say(self, doing: str) -> None:
        raise AssertionError("a run says it in its state, and rollouts say nothing")

    @property
    def last(self) -> RolloutProgress:
        return self.states[-1][1]


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now
