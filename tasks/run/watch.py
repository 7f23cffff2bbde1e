"""Watches a flow run: the progress of its stages, its place among them, and how long it still takes."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from threading import RLock

from stillhouse.progress.run_state import RunState, SettlingEta, StageState
from stillhouse.progress.state import Fact, RolloutProgress
from tasks.run.progress import Listener
from tasks.run.stages import EVALUATION_OF


class RunWatch:
    """A `Listener` that passes everything on to the one that shows it, and tells it the state of the run.

    Args:
        stages: names of those planned, in their order.
        shown: receives what this one receives, and the state of the run.
        earlier: seconds that stages took in an earlier run of this kind, by name.
        clock: monotonic, in seconds.
    """

    def __init__(
        self,
        stages: Sequence[str],
        shown: Listener,
        earlier: Mapping[str, float],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._shown = shown
        self._earlier = earlier
        self._clock = clock
        self._stages = [StageState(name, "ahead") for name in stages]
        self._lock = RLock()
        self._began = clock()
        self._doing = ""
        self._present_eta: SettlingEta | None = None
        self._begin_next()

    def update(self, stage: str, done: int, total: int | None, **facts: Fact) -> None:
        """See `stillhouse.progress.state.Progress`."""
        self._shown.update(stage, done, total, **facts)
        eta_s = facts.get("eta_s")
        with self._lock:
            self._observe(eta_s if isinstance(eta_s, int | float) else None)

    def update_rollouts(self, stage: str, state: RolloutProgress) -> None:
        """See `stillhouse.progress.state.RolloutWatcher`."""
        self._shown.update_rollouts(stage, state)
        with self._lock:
            self._observe(state.eta_s)

    def update_run(self, state: RunState) -> None:
        """See `Listener`."""
        self._shown.update_run(state)

    def say(self, doing: str) -> None:
        """See `Listener`."""
        with self._lock:
            self._doing = doing
            self._shown.update_run(self.state)

    def end_stage(self, name: str, *, cached: bool, seconds: float) -> None:
        """Takes note that a stage, planned or not, has ended, and begins the next."""
        with self._lock:
            ended = StageState(name, "cached" if cached else "done", seconds)
            if name not in [stage.name for stage in self._stages]:
                self._stages.insert(self.state.number - 1, ended)
            self._stages = [ended if stage.name == name else stage for stage in self._stages]
            self._begin_next()
            self._shown.update_run(self.state)

    @property
    def state(self) -> RunState:
        """The state of the run now."""
        with self._lock:
            now = self._clock()
            eta_s = None if self._present_eta is None else self._present_eta.left(now)
            stages = [
                replace(stage, seconds=now - self._began) if stage.status == "running" else stage
                for stage in self._stages
            ]
            if eta_s is None:
                expected = [self._expected(stage.name) for stage in stages if stage.status == "running"]
                eta_s = max(expected[0] - (now - self._began), 0.0) if expected and expected[0] is not None else None
            later = [self._expected(stage.name) for stage in stages if stage.status == "ahead"]
            known = [seconds for seconds in later if seconds is not None]
            total = None if eta_s is None else eta_s + sum(known)
            return RunState(tuple(stages), self._doing, total, len(later) - len(known))

    def _observe(self, eta_s: float | None) -> None:
        if eta_s is not None:
            self._present_eta = self._present_eta or SettlingEta()
            self._present_eta.update(eta_s, self._clock())
        self._shown.update_run(self.state)

    def _begin_next(self) -> None:
        """Makes the first stage that has not ended the present one."""
        self._began, self._doing, self._present_eta = self._clock(), "", None
        waiting = [index for index, stage in enumerate(self._stages) if stage.status in ("running", "ahead")]
        for place, index in enumerate(waiting):
            self._stages[index] = StageState(self._stages[index].name, "running" if place == 0 else "ahead")

    def _expected(self, name: str) -> float | None:
        """Seconds that a stage takes, by this run's evaluations or an earlier run; None if nobody knows."""
        alike = [
            stage.seconds or 0.0
            for stage in self._stages
            if name.startswith(EVALUATION_OF) and stage.name.startswith(EVALUATION_OF) and stage.status == "done"
        ]
        return sum(alike) / len(alike) if alike else self._earlier.get(name)
