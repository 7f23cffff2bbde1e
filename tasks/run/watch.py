"""Watches a flow run: the progress of its stages, its place among them, and how long it still takes."""

import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from threading import RLock
from typing import Final

from stillhouse.progress.run_state import Bar, Listener, RunState, StageState
from stillhouse.progress.state import Fact, RolloutProgress
from stillhouse.types import Trajectory
from tasks.run.stage import EVALUATION_OF

_MAX_POINTS: Final = 400
"""Of a curve; a longer one loses every second point."""
_NUM_SHOWN: Final = 3
_NUM_TRAJECTORIES: Final = 200
_WEIGHT: Final = 0.2
"""Of a new estimate of the end against those before it."""
_NO_CURVES: Final = frozenset({"eta_s", "doing", "learning_rate", "checkpoint"})


class RunWatch(Listener):
    """Passes everything on to the listener that shows it, and tells it the state of the run.

    It keeps the latest report of each stage, its curves and the last trajectories, for the run's page. `stages` are the
    names of those planned; `earlier` has the seconds that stages took in an earlier run of this kind.
    """

    def __init__(
        self,
        stages: Sequence[str],
        shown: Listener,
        earlier: Mapping[str, float],
        page: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._shown = shown
        self._earlier = earlier
        self._page = page
        self._clock = clock
        self._bars: dict[str, Bar] = {}
        self._first_reports: dict[str, float] = {}
        self._curves: dict[str, dict[str, list[tuple[int, float]]]] = {}
        self._ended_trajectories: list[tuple[str, Trajectory]] = []
        self._trajectories: deque[tuple[str, Trajectory]] = deque(maxlen=_NUM_TRAJECTORIES)
        self._stages = [StageState(name, "ahead") for name in stages]
        self._lock = RLock()
        self._began = clock()
        self._doing = ""
        self._end: float | None = None
        self._begin_next()

    def update(self, stage: str, done: int, total: int | None, **facts: Fact) -> None:
        self._shown.update(stage, done, total, **facts)
        eta_s = facts.get("eta_s")
        with self._lock:
            figures = self._bars[stage].facts if "doing" in facts and stage in self._bars else {}
            self._bars[stage] = Bar(done, total, self._seconds(stage), {**figures, **facts})
            if done:
                self._add_to_curves(stage, done, {name: facts[name] for name in facts if name not in _NO_CURVES})
            self._observe(eta_s if isinstance(eta_s, int | float) else None)

    def update_rollouts(self, stage: str, state: RolloutProgress) -> None:
        self._shown.update_rollouts(stage, state)
        with self._lock:
            self._bars[stage] = Bar(state.done, state.total, self._seconds(stage), rollouts=state)
            # Evaluations are too short to be read as curves.
            if state.limit and not stage.startswith("evaluate "):
                self._add_to_curves(stage, state.done, {"limit": state.limit, "tokens_per_s": state.tokens_per_s})
                self._add_to_curves(stage, state.done, {"usd": state.usd} if state.usd else {})
            self._observe(state.eta_s)

    def show_trajectory(self, stage: str, trajectory: Trajectory) -> None:
        with self._lock:
            self._trajectories.appendleft((stage, trajectory))

    def announce(self, plan: str) -> None:
        logging.getLogger("stillhouse.run").info("%s", plan)
        self._shown.announce(plan)

    def say(self, doing: str) -> None:
        with self._lock:
            self._doing = doing
            self._shown.update_run(self.state)

    def end_stage(self, name: str, *, cached: bool, seconds: float) -> None:
        """Take note that a stage, planned or not, has ended, and begin the next."""
        with self._lock:
            ended = StageState(name, "cached" if cached else "done", seconds)
            if name not in [stage.name for stage in self._stages]:
                self._stages.insert(self.state.number - 1, ended)
            # They are in the stage's artifact now, but one still has to be looked at on the page.
            self._ended_trajectories = self.trajectories[:_NUM_SHOWN] or self._ended_trajectories
            self._trajectories.clear()
            self._stages = [ended if stage.name == name else stage for stage in self._stages]
            self._begin_next()
            self._shown.update_run(self.state)

    @property
    def bars(self) -> dict[str, Bar]:
        """Return the latest report of each stage, by the name under which it reports."""
        with self._lock:
            return dict(self._bars)

    @property
    def curves(self) -> dict[str, dict[str, list[tuple[int, float]]]]:
        """Return figures of each stage by items or steps done."""
        with self._lock:
            return {
                stage: {name: list(points) for name, points in curves.items()} for stage, curves in self._curves.items()
            }

    @property
    def trajectories(self) -> list[tuple[str, Trajectory]]:
        """Return the last ones of the stage under way, with the name that it is shown under, newest first."""
        with self._lock:
            return list(self._trajectories)

    @property
    def last_trajectories(self) -> list[tuple[str, Trajectory]]:
        """Return a few of `trajectories`, or of those of the stage before."""
        return self.trajectories[:_NUM_SHOWN] or self._ended_trajectories

    @property
    def state(self) -> RunState:
        """Return the state of the run now."""
        with self._lock:
            now = self._clock()
            eta_s = None if self._end is None else max(self._end - now, 0.0)
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
            return RunState(tuple(stages), self._doing, total, len(later) - len(known), self._page)

    def _seconds(self, stage: str) -> float:
        now = self._clock()
        return now - self._first_reports.setdefault(stage, now)

    def _add_to_curves(self, stage: str, done: int, figures: Mapping[str, Fact | None]) -> None:
        for name, value in figures.items():
            if not isinstance(value, int | float):
                continue
            points = self._curves.setdefault(stage, {}).setdefault(name, [])
            if points and points[-1][0] == done:
                points.pop()
            points.append((done, float(value)))
            if len(points) > _MAX_POINTS:
                del points[1:-1:2]

    def _observe(self, eta_s: float | None) -> None:
        if eta_s is not None:
            # Single estimates jump with every pause of an endpoint.
            end = self._clock() + eta_s
            self._end = end if self._end is None else self._end + _WEIGHT * (end - self._end)
        self._shown.update_run(self.state)

    def _begin_next(self) -> None:
        """Make the first stage that has not ended the present one."""
        self._began, self._doing, self._end = self._clock(), "", None
        waiting = [index for index, stage in enumerate(self._stages) if stage.status in ("running", "ahead")]
        for place, index in enumerate(waiting):
            self._stages[index] = StageState(self._stages[index].name, "running" if place == 0 else "ahead")

    def _expected(self, name: str) -> float | None:
        """Return the seconds that a stage takes, by this run's evaluations or an earlier run; None if nobody knows."""
        alike = [
            stage.seconds or 0.0
            for stage in self._stages
            if name.startswith(EVALUATION_OF) and stage.name.startswith(EVALUATION_OF) and stage.status == "done"
        ]
        return sum(alike) / len(alike) if alike else self._earlier.get(name)
