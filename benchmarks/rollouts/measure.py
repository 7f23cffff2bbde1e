"""The runs that `acceptance` measures, and how many: a job to its end, one without end, the command a user types."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.rollouts.client import Client, Took
from benchmarks.rollouts.convergence import Convergence, follow
from benchmarks.rollouts.process import RunningProvider, Summary, running
from benchmarks.rollouts.sides.job import Job
from tests.provider.answers import Service
from tests.provider.limits import Step

HERE: Final = Path(sys.executable)
LATENCY_S: Final = 0.2
_LIMIT_S: Final = 900.0


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is measured."""

    rounds: int = 3
    num_prompts: int = 2000
    long_factor: int = 10
    """Times more prompts where the way up should not count."""
    memory_prompts: tuple[int, int] = (10_000, 100_000)
    duration_s: float = 90.0
    settle_s: float = 30.0


def endure(
    course: tuple[Step, ...], *, headers: bool, settle_s: float, duration_s: float, folder: Path
) -> list[Convergence]:
    """The engine with more prompts than it can use, stopped after a while."""
    service = Service(
        latency_s=0.5,
        latency_sigma=0.3,
        steps=course,
        completion_tokens=60,
        retry_after="whole" if headers else None,
        has_headers=headers,
    )
    with fresh(folder) as aside, running(service) as provider:
        job = Job(provider.url, str(aside), 1_000_000, 1000, keep_rows=False)
        job.write(aside / "job.json")
        with Client(HERE, "engine", aside / "job.json") as client:
            client.watch(_after(provider, duration_s), _LIMIT_S)
        return follow(provider.ledger().seconds, course, settle_s, duration_s - 1)


def _after(provider: RunningProvider, duration_s: float) -> Callable[[], bool]:
    first: list[float] = []

    def is_over() -> bool:
        if not first and provider.stats().num_requests:
            first.append(time.time())
        return bool(first) and time.time() - first[0] >= duration_s

    return is_over


def run(side: str, job: Job) -> Took:
    """A client run to its end.

    Raises:
        RuntimeError: it failed or took too long.
    """
    path = Path(job.folder) / "job.json"
    job.write(path)
    with Client(HERE, side, path) as client:
        took = client.watch(lambda: False, _LIMIT_S)
    if took.exit_code or took.ended != "itself":
        raise RuntimeError(f"{side}: exit {took.exit_code}, ended {took.ended}; see {Path(job.folder) / 'log.txt'}")
    return took


def run_bare(num_prompts: int, slots: int, folder: Path) -> float:
    """Seconds from the first request to the end of the engine alone, in a process of its own."""
    with running(Service(latency_s=LATENCY_S)) as provider:
        run("engine", Job(provider.url, str(folder), num_prompts, slots, start=slots))
        return _since_first_request_s(provider)


def run_flow(num_prompts: int, slots: int, folder: Path) -> float:
    """Seconds from the first request to the end of `stillhouse generate`, in a store of its own."""
    prompts = folder / "prompts.jsonl"
    questions = Job("", "", num_prompts, 1).questions()
    prompts.write_text("".join(json.dumps({"prompt": one.text}) + "\n" for one in questions), encoding="utf-8")
    overrides = [f"runtime.concurrency={slots}", f"runtime.max_concurrency={slots}"]
    overrides += ["prompts.held_out_fraction=0", "student.model=embedded:student", f"runtime.store={folder / 'store'}"]
    with running(Service(latency_s=LATENCY_S)) as provider:
        command: list[str | Path] = [HERE.parent / "stillhouse", "generate", prompts, "-o", folder / "out.parquet"]
        command += ["--base-url", provider.url, "-m", "simulated-1", "--max-tokens", "64"]
        for override in overrides:
            command += ["--set", override]
        environment = {**os.environ, "PREFECT_HOME": str(folder / "prefect"), "OPENAI_API_KEY": "none"}
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
        taken_s = _since_first_request_s(provider) if done.returncode == 0 else 0.0
    if done.returncode:
        raise RuntimeError(f"stillhouse generate: exit {done.returncode}: {done.stderr[-2000:]}")
    return taken_s


def _since_first_request_s(provider: RunningProvider) -> float:
    now, first = time.time(), provider.ledger().first_arrival
    assert first is not None
    return now - first


def span_s(ledger: Summary) -> float:
    """Seconds from the first request to the last billed answer."""
    assert ledger.first_arrival is not None
    assert ledger.last_answer is not None
    return ledger.last_answer - ledger.first_arrival


@contextmanager
def fresh(folder: Path) -> Iterator[Path]:
    """The folder, emptied."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    yield folder
