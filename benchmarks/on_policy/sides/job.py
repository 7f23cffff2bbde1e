"""The job and the record of one on-policy training."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Final, Self

import torch

from benchmarks.frame.training import TrainingJob, TrainingRecord
from stillhouse.training.loop.row_order import distinct_rows

WORKS: Final = ("sample", "score", "train", "sync")
"""What a step spends its time on; what is none of the others is training."""

Trajectory = tuple[list[int], list[int]]
"""Ids of a prompt and of what was sampled after it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OnPolicyJob(TrainingJob):
    """One on-policy training."""

    group_size: int = 1
    """Completions of one prompt. One: each is scored by the teacher. Several: rewards alone teach, by GRPO."""
    replay: str = ""
    """Ours: file of trajectories to train on instead of sampling some; empty samples."""

    @property
    def prompts_per_step(self) -> int:
        """Of one optimiser step."""
        return self.batch_size // self.group_size

    def step_rows(self, step: int, num_rows: int) -> list[int]:
        """Which of the rows a step samples from."""
        return distinct_rows(step, self.prompts_per_step, num_rows, seed=0)


@dataclass(slots=True)
class OnPolicyRecord(TrainingRecord):
    """What an on-policy training measured; the tokens of its marks are those sampled."""

    gradient_norms: list[float] = field(default_factory=list)
    """Of each step, before clipping."""
    seconds: list[dict[str, float]] = field(default_factory=list)
    """Of each step, by all of `WORKS` but `train`."""
    trajectories: list[list[Trajectory]] = field(default_factory=list)
    """Of each step, in no particular order."""
    profile: dict[str, Any] = field(default_factory=dict)
    """Of the last step, where the job wants one."""

    def only(self, first: int, end: int) -> Self:
        """What the steps from `first` up to `end` left."""
        names = ("marks", "losses", "gradient_norms", "seconds", "trajectories")
        return replace(self, **{name: getattr(self, name)[first:end] for name in names})

    def splits(self) -> list[dict[str, float]]:
        """Seconds of each step but the first, by `WORKS`."""
        splits = []
        for (before, after), spent in zip(pairwise(self.marks), self.seconds[1:], strict=True):
            splits.append({**spent, "train": after.wall_s - before.wall_s - sum(spent.values())})
        return splits


def num_sampled(trajectories: Sequence[Trajectory]) -> int:
    """Tokens of all completions."""
    return sum(len(completion_ids) for _, completion_ids in trajectories)


def clock() -> float:
    """Seconds that never go back, after the GPU has finished its queue."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()
