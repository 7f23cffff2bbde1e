"""Runs the jobs of a plan, one process after the other, within a budget of time."""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from benchmarks.gpu.environment import ROOT
from benchmarks.gpu.plan import Job
from benchmarks.gpu.results import Measurement, Results

_RESERVE_S: Final = 10.0
"""Kept free at the end of the budget for the page."""
_PATIENCE: Final = 3.0
"""A job is ended after so many times the seconds that its rows need at least, so that the others get their turn."""
_NUM_REASON_LINES: Final = 3
_NUM_LOG_LINES: Final = 60
"""Of the log of a job that failed, which are printed: nobody may reach the machine again."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What all jobs of a call have in common."""

    device: str
    tiny: bool
    commit: str
    model: Path | None = None

    def arguments(self) -> list[str]:
        """For the command line of a job."""
        tiny = ["--tiny"] if self.tiny else []
        model = [] if self.model is None else ["--model", str(self.model)]
        return ["--device", self.device, *tiny, "--commit", self.commit, *model]


class Runner:
    """Measures what is missing.

    Args:
        results: of this call and of earlier ones.
        setting: of all jobs.
        say: takes each line of progress.
    """

    def __init__(self, results: Results, setting: Setting, say: Callable[[str], None]) -> None:
        self._results = results
        self._setting = setting
        self._say = say

    def run(self, jobs: Sequence[Job], budget_s: float) -> None:
        """Runs the jobs in order; rows that an earlier call tried in vain come last."""
        ends = time.monotonic() + budget_s - min(_RESERVE_S, budget_s / 10)
        for job in (*self._untried(jobs), *self._failed(jobs)):
            left_s = ends - time.monotonic()
            if left_s < job.rows[0].least_s and not self._setting.tiny:
                self._say(f"{job.part}, {job.name}: not begun, {left_s:.0f} s are left of the budget")
                continue
            patience_s = left_s if self._setting.tiny else _PATIENCE * sum(row.least_s for row in job.rows)
            self._run_job(job, max(1.0, min(left_s, patience_s)))

    def _untried(self, jobs: Sequence[Job]) -> list[Job]:
        return _with_rows(jobs, lambda job, row: self._known(job).get(row) is None)

    def _failed(self, jobs: Sequence[Job]) -> list[Job]:
        return _with_rows(
            jobs, lambda job, row: row in self._known(job) and self._known(job)[row].status in ("failed", "partial")
        )

    def _known(self, job: Job) -> dict[str, Measurement]:
        """Earlier measurements at this scale on this kind of device."""
        scale = {"device_type": self._setting.device, "tiny": self._setting.tiny}
        return {
            name: measurement
            for name, measurement in self._results.rows(job.part).items()
            if all(measurement.machine.get(fact) == value for fact, value in scale.items())
        }

    def _run_job(self, job: Job, limit_s: float) -> None:
        command = [sys.executable, "-m", "benchmarks.gpu.job", job.part, job.name, "--limit-s", f"{limit_s:.1f}"]
        command += ["--out", str(self._results.folder.absolute()), *self._setting.arguments()]
        for row in job.rows:
            command += ["--row", row.name]
        before = self._results.rows(job.part)
        with tempfile.TemporaryFile("w+") as log:
            process = subprocess.Popen(
                command, cwd=ROOT, env=_environment(), stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )
            try:
                code: int | None = process.wait(timeout=limit_s)
            except subprocess.TimeoutExpired:
                code = None
            finally:
                _end(process)
            log.seek(0)
            # Python's traces underline their lines with carets.
            lines = [line.rstrip() for line in log.read().splitlines() if line.strip(" ^~")]
            reason = f"stopped after {limit_s:.0f} s"
            if code:
                reason = f"exit {code}: {' | '.join(line.strip() for line in lines[-_NUM_REASON_LINES:])}"
        self._explain(job, before, reason if code != 0 else None)
        after = self._results.rows(job.part)
        changed = {row.name: after[row.name] for row in job.rows if after.get(row.name) != before.get(row.name)}
        for name, measurement in changed.items():
            self._say(summary(job, name, measurement))
        if any(measurement.status in ("failed", "partial") for measurement in changed.values()):
            self._say("\n".join(f"    {line}" for line in lines[-_NUM_LOG_LINES:]))

    def _explain(self, job: Job, before: dict[str, Measurement], reason: str | None) -> None:
        """Writes down why the process ended early, at the row that it was measuring."""
        if reason is None:
            return
        after = self._results.rows(job.part)
        cut_off = [row.name for row in job.rows if row.name in after and after[row.name].status == "partial"]
        untouched = [row.name for row in job.rows if after.get(row.name) == before.get(row.name)]
        scale = {"device_type": self._setting.device, "tiny": self._setting.tiny, "commit": self._setting.commit}
        if cut_off:
            self._results.put(job.part, cut_off[0], replace(after[cut_off[0]], reason=reason))
        elif untouched:
            self._results.put(job.part, untouched[0], Measurement("failed", scale, reason=reason))


def summary(job: Job, row: str, measurement: Measurement) -> str:
    """One line about a row, as printed."""
    figures = ", ".join(f"{name} {_short(value)}" for name, value in measurement.figures.items() if _is_plain(value))
    if measurement.status == "measured":
        return f"{job.part}, {row}: {figures}"
    return f"{job.part}, {row}: {measurement.status}: {measurement.reason}{figures and f'; {figures}'}"


def _with_rows(jobs: Sequence[Job], wanted: Callable[[Job, str], bool]) -> list[Job]:
    """The jobs with the wanted ones of their rows; without any, a job is left out."""
    reduced = [replace(job, rows=tuple(row for row in job.rows if wanted(job, row.name))) for job in jobs]
    return [job for job in reduced if job.rows]


def _environment() -> dict[str, str]:
    """For a job: the checkout before everything else on the path, and no hub, which would be waited for in vain."""
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, "PYTHONPATH": path, "HF_HUB_OFFLINE": "1"}


def _end(process: subprocess.Popen[Any]) -> None:
    """Ends the process and all that it started, such as compilers."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _is_plain(value: object) -> bool:
    return isinstance(value, str | int | float) and value != ""


def _short(value: object) -> str:
    return f"{value:,.4g}" if isinstance(value, float) else str(value)
