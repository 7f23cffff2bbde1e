"""The work of a run in units that processes share: one experiment with one seed each."""

import multiprocessing
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.science.experiments import EXPERIMENTS
from benchmarks.science.lab import Lab


class Unit(NamedTuple):
    """What one process does at a time."""

    experiment: str
    seed: int
    lab: Lab

    @property
    def path(self) -> Path:
        """Where its result is kept."""
        return self.lab.folder / "results" / f"{self.experiment}-seed-{self.seed}.json"


def run_unit(unit: Unit) -> tuple[Unit, float]:
    """Runs one experiment with one seed in this process, and writes its result; the seconds it took."""
    # Not before: the parent process needs none of it.
    import torch
    from transformers.utils.logging import disable_progress_bar

    torch.set_num_threads(1)
    disable_progress_bar()
    started = time.perf_counter()
    EXPERIMENTS[unit.experiment].run(unit.lab, unit.seed).write(unit.path)
    return unit, time.perf_counter() - started


def run_all(units: Sequence[Unit], num_processes: int) -> Iterator[tuple[Unit, float]]:
    """Runs the units, as many at once as there are processes; each as it ends, with the seconds it took."""
    # One thread a process: models this small gain nothing from more.
    os.environ["OMP_NUM_THREADS"] = "1"
    with multiprocessing.get_context("spawn").Pool(num_processes, maxtasksperchild=1) as pool:
        yield from pool.imap_unordered(run_unit, units)
