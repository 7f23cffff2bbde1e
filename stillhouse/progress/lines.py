"""Progress as plain lines, for output that is piped and for logs."""

import math
import time
from collections.abc import Callable

from stillhouse.progress.run_state import Listener, RunState
from stillhouse.progress.state import Fact, RolloutProgress
from stillhouse.progress.text import counted, facts_text, lines_of, run_text


class LineProgress(Listener):
    """Writes a line of each stage at most every few seconds, and one at each of its ends.

    `write` takes a line; two of a stage are `every_s` seconds apart. After `quiet_s` seconds without any line, one says
    where the run is.
    """

    def __init__(self, write: Callable[[str], object], every_s: float, quiet_s: float = math.inf) -> None:
        self._write = write
        self._every_s = every_s
        self._quiet_s = quiet_s
        self._written: dict[str, float] = {}
        self._ended: dict[str, int] = {}
        self._last_line = time.monotonic()
        self._is_run_known = False

    def update(self, stage: str, done: int, total: int | None, **facts: Fact) -> None:
        doing = str(facts.pop("doing", ""))
        # What a stage does between its figures would stand in the place of these.
        if not doing or total is None or self._is_quiet:
            self._report(stage, done, total, f"{done}/{'?' if total is None else total}  {doing or facts_text(facts)}")

    def update_rollouts(self, stage: str, state: RolloutProgress) -> None:
        figures = "; ".join(f"{name} {text}" for name, text in lines_of(state))
        line = f"{counted(state)}  {figures if state.limit or state.done else 'starting'}"
        self._report(stage, state.done, state.total, line)

    def update_run(self, state: RunState) -> None:
        """Say once where the run's page is, and where the run is if nothing else was said for long."""
        if state.page and not self._is_run_known:
            self._write(f"page     {state.page}")
        self._is_run_known = True
        if self._is_quiet:
            self._write_line(run_text(state))

    def announce(self, plan: str) -> None:
        self._write_line(f"plan     {plan}")

    @property
    def _is_quiet(self) -> bool:
        return time.monotonic() - self._last_line >= self._quiet_s

    def _report(self, stage: str, done: int, total: int | None, line: str) -> None:
        now = time.monotonic()
        if done == total:
            # A stage in parts may reach several ends.
            due = self._ended.get(stage) != done
            self._ended[stage] = done
        else:
            due = now - self._written.get(stage, float("-inf")) >= self._every_s
        if due:
            self._written[stage] = now
            self._write_line(f"{stage:<18} {line}")

    def _write_line(self, line: str) -> None:
        self._last_line = time.monotonic()
        self._write(line)
