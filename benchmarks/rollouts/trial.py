"""One side through one scenario: the runs it takes, and the score."""

import itertools
import json
import re
import time
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from benchmarks.rollouts.client import Client, Took
from benchmarks.rollouts.process import RunningProvider, Summary, running
from benchmarks.rollouts.scenarios import Scenario
from benchmarks.rollouts.sides.job import Job

_CASE: Final = re.compile(r"\[case-[\w-]+\]")
_SLOWEST_PEER: Final = 5.0
_STARTUP_S: Final = 40.0


@dataclass(frozen=True, slots=True)
class Score:
    """How a side did. Ratios where there is something to divide by."""

    share_of_optimum: float
    """Rows received over rows wanted, times the optimum's time over that from first request to last answer."""
    refused_per_row: float
    billed_over_useful: float
    """Billed requests over those that the wanted rows need."""
    num_lost: int
    num_doubled: int
    num_swapped: int
    """Rows whose answer is another prompt's."""
    num_rebilled: int | None
    """Billed beyond what is needed, where the client was killed or run again; None where it was neither."""
    in_flight_at_kills: int | None
    """Requests being served when it was killed, and those answered within the 50 ms before."""
    cpu_s_per_1000: float
    """CPU of the client for 1,000 rows, imports left out."""
    peak_rss_mb: float
    peak_in_flight: int
    span_s: float
    """From first request to last answer, without the time between a kill and the first request after it."""
    wall_s: float
    ended: str
    """How the last run ended: `itself`, or `late` where it was stopped."""
    exit_code: int

    @property
    def is_whole(self) -> bool:
        """Whether every row is there once, with its own answer."""
        return self.num_lost == self.num_doubled == self.num_swapped == 0


@dataclass(frozen=True, slots=True)
class _Run:
    """One run of the client's command."""

    took: Took
    first_request_at: float | None
    ended_at: float
    in_flight: int
    """When it was killed."""


class _Lookout:
    """Asks the provider how far a run is, and tells when to kill it."""

    def __init__(self, provider: RunningProvider, kill_at: int | None) -> None:
        self._provider = provider
        self._kill_at = kill_at
        self._num_before = provider.stats().num_requests
        self.first_request_at: float | None = None
        self.in_flight = 0

    def should_kill(self) -> bool:
        """Whether so many requests are billed."""
        if self._kill_at is None and self.first_request_at is not None:
            return False
        stats = self._provider.stats()
        if self.first_request_at is None and stats.num_requests > self._num_before:
            self.first_request_at = time.time()
        self.in_flight = stats.in_flight + stats.num_billed_recently
        return self._kill_at is not None and stats.num_billed >= self._kill_at


def run_trial(scenario: Scenario, best_s: float, side: str, python: Path, folder: Path) -> Score:
    """The side's score in the scenario.

    Args:
        scenario: what it is put through.
        best_s: the optimum.
        side: the client, a module of `benchmarks.rollouts.sides`.
        python: the interpreter that has its package.
        folder: an empty folder for its rows, journals and log.
    """
    runs: list[_Run] = []
    limit_s = scenario.limit_s or _SLOWEST_PEER * best_s + _STARTUP_S
    with running(scenario.service) as provider:
        job = _job(scenario, provider.url, folder)
        for num_samples, kill_at in _phases(scenario):
            replace(job, num_samples=num_samples).write(folder / "job.json")
            lookout = _Lookout(provider, kill_at)
            with Client(python, side, folder / "job.json") as client:
                took = client.watch(lookout.should_kill, limit_s)
            in_flight = lookout.in_flight if took.ended == "killed" else 0
            runs.append(_Run(took, lookout.first_request_at, time.time(), in_flight))
        ledger = provider.ledger()
    return _score(scenario, best_s, job, runs, ledger)


def _job(scenario: Scenario, url: str, folder: Path) -> Job:
    return Job(
        url=url,
        folder=str(folder),
        num_prompts=scenario.num_prompts,
        concurrency=scenario.concurrency,
        num_samples=scenario.num_samples,
        max_tokens=scenario.max_tokens,
        padding=scenario.padding,
        tools=scenario.num_turns > 1,
        tool_s=scenario.tool_s,
        hanging_every=scenario.hanging_every,
    )


def _phases(scenario: Scenario) -> list[tuple[int, int | None]]:
    """Samples and number of billed requests to kill at, of each run of the command."""
    phases: list[tuple[int, int | None]] = []
    if scenario.num_samples_first is not None:
        phases.append((scenario.num_samples_first, None))
    phases += [(scenario.num_samples, round(share * scenario.num_requests)) for share in scenario.kills]
    return [*phases, (scenario.num_samples, None)]


def _score(scenario: Scenario, best_s: float, job: Job, runs: list[_Run], ledger: Summary) -> Score:
    rows = _read_rows(job)
    good = Counter(case for case, answer in rows if answer is not None and case in answer)
    num_good = sum(min(count, scenario.num_samples) for count in good.values())
    span_s = _span_s(runs, ledger)
    again = len(runs) > 1
    return Score(
        share_of_optimum=num_good / scenario.num_rows * best_s / span_s if span_s else 0.0,
        refused_per_row=ledger.num_refused / max(num_good, 1),
        billed_over_useful=ledger.num_billed / scenario.num_requests,
        num_lost=scenario.num_rows - num_good,
        num_doubled=sum(max(count - scenario.num_samples, 0) for count in good.values()),
        num_swapped=sum(_names_another(case, answer) for case, answer in rows),
        num_rebilled=ledger.num_billed - scenario.num_requests if again else None,
        in_flight_at_kills=sum(run.in_flight for run in runs) if again else None,
        cpu_s_per_1000=sum(run.took.cpu_s for run in runs) / max(num_good, 1) * 1000,
        peak_rss_mb=max(run.took.peak_rss_mb for run in runs),
        peak_in_flight=ledger.peak_in_flight,
        span_s=span_s,
        wall_s=sum(run.took.wall_s for run in runs),
        ended=runs[-1].took.ended,
        exit_code=runs[-1].took.exit_code,
    )


def _read_rows(job: Job) -> list[tuple[str, str | None]]:
    if not job.rows_file.exists():
        return []
    rows = []
    for line in job.rows_file.read_text(encoding="utf-8").splitlines():
        try:
            row = json.loads(line)
        except ValueError:
            # A client that was killed while it wrote has lost the row.
            continue
        rows.append((row["case"], row["answer"]))
    return rows


def _names_another(case: str, answer: str | None) -> bool:
    match = _CASE.search(answer or "")
    return match is not None and match[0] != case


def _span_s(runs: list[_Run], ledger: Summary) -> float:
    if ledger.first_arrival is None or ledger.last_answer is None:
        return 0.0
    idle_s = 0.0
    for before, after in itertools.pairwise(runs):
        idle_s += (after.first_request_at or before.ended_at) - before.ended_at
    return max(ledger.last_answer - ledger.first_arrival - idle_s, 1e-9)
