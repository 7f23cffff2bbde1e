"""On-policy distillation by this project and by TRL."""

import json
import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import torch

from benchmarks.frame.against_trl import Bench, LossReport, Turn, Workload
from benchmarks.frame.training import Precision, Speed
from benchmarks.on_policy.floor import Machine, floor_seconds
from benchmarks.on_policy.settings import BEST, NAMES, OURS, trl_settings
from benchmarks.on_policy.sides.job import OnPolicyJob, OnPolicyRecord
from benchmarks.on_policy.workload import PAIRS, Pair, write_workload

_NUM_ROWS: Final = 256


class OnPolicyBench(Bench[OnPolicyJob, OnPolicyRecord]):
    """Distillation on what the student samples.

    Args:
        folder: for workloads and scratch files.
        trl: folder that holds TRL.
        num_threads: of each training.
        group_size: completions of one prompt; with more than one both sides learn from rewards alone, by GRPO.
    """

    sides = "benchmarks.on_policy.sides"
    record = OnPolicyRecord
    our_settings = OURS
    best_trl_settings = BEST
    all_trl_settings = NAMES
    least_ratio = 3.0

    def __init__(self, folder: Path, trl: Path, num_threads: int, group_size: int = 1) -> None:
        super().__init__(folder, trl, num_threads)
        self._group_size = group_size
        self._machines: dict[Precision, Machine] = {}

    def trl_settings(self, name: str, batch_size: int) -> dict[str, Any]:
        """Arguments of `DistillationConfig`."""
        return trl_settings(name, batch_size)

    def losses(self, workload: Workload) -> LossReport:
        """The losses of both on what TRL samples; where rewards alone teach, the norms of the gradients.

        Advantages of a group add up to nothing, and so does GRPO's loss.
        """
        job = self.job(workload)
        trl = self.run("trl", job)
        sampled = self.folder / "sampled.json"
        sampled.write_text(json.dumps(trl.trajectories), encoding="utf-8")
        ours = self.run("ours", replace(job, replay=str(sampled)))
        figure = "losses" if self._group_size == 1 else "gradient_norms"
        return LossReport.of(figure.replace("_", " "), getattr(ours, figure), getattr(trl, figure))

    def measured(self, workload: Workload, record: OnPolicyRecord) -> Turn:
        """A training's figures and the least seconds this machine could take."""
        machine = self._machine(workload.precision)
        return turn_of(record, PAIRS[workload.shape], machine, is_scored=self._group_size == 1)

    def job(self, workload: Workload) -> OnPolicyJob:
        """A training on the shape's prompts."""
        folder = self.folder / str(workload).replace(" ", "-")
        if not folder.exists():
            write_workload(folder, PAIRS[workload.shape], _NUM_ROWS, equal=workload.equal)
        return OnPolicyJob(
            folder=str(folder),
            scratch=str(self.folder / "scratch"),
            num_steps=workload.num_steps,
            batch_size=workload.batch_size,
            group_size=self._group_size,
            precision=workload.precision,
            num_threads=self.num_threads,
        )

    def _machine(self, precision: Precision) -> Machine:
        if precision not in self._machines:
            torch.set_num_threads(self.num_threads)
            self._machines[precision] = Machine.measured(precision, torch.device("cpu"))
        return self._machines[precision]


def turn_of(record: OnPolicyRecord, pair: Pair, machine: Machine, *, is_scored: bool = True) -> Turn:
    """The figures of a training of two steps or more; `is_scored` says whether its teacher had a part."""
    floors = [floor_seconds(pair, step, machine, is_scored=is_scored) for step in record.trajectories[1:]]
    return Turn(Speed.of(record.marks), _medians(record.splits()), _medians(floors))


def _medians(steps: Sequence[dict[str, float]]) -> dict[str, float]:
    return {name: statistics.median(step[name] for step in steps) for name in steps[0]}
