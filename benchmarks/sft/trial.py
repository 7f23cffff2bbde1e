"""One side through one training, in a process of its own."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol, TypeVar

from benchmarks.sft.sides.job import Mark

FoundT = TypeVar("FoundT")
_ROOT: Final = Path(__file__).parents[2]
_LIMIT_S: Final = 1_200.0
_ALLOCATOR: Final = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(1 << 34),
    "MALLOC_TOP_PAD_": str(1 << 26),
}
"""Freed memory is kept, for both sides: TRL makes temporaries of hundreds of megabytes, and given back after every
operation their pages cost it more than all of its arithmetic."""


@dataclass(frozen=True, slots=True)
class Speed:
    """How fast a training went after its first step, which warms up."""

    tokens_per_s: float
    tokens_per_cpu_s: float
    """For each second of a core; suffers less from what else a machine does."""
    s_per_step: float
    peak_bytes: int

    @classmethod
    def of(cls, marks: Sequence[Mark]) -> "Speed":
        """The speed of a training of two steps or more, from the ends of its steps."""
        first, last = marks[0], marks[-1]
        num_tokens, wall_s = last.num_tokens - first.num_tokens, last.wall_s - first.wall_s
        return cls(
            tokens_per_s=num_tokens / wall_s,
            tokens_per_cpu_s=num_tokens / (last.cpu_s - first.cpu_s),
            s_per_step=wall_s / (len(marks) - 1),
            peak_bytes=last.peak_bytes,
        )


class SideJob(Protocol):
    """What a side is asked to do."""

    @property
    def scratch(self) -> str:
        """A folder of this run's own."""

    @property
    def num_threads(self) -> int:
        """Of torch."""

    def write(self, path: Path) -> None:
        """Writes the job to the file."""


def run(module: str, job: SideJob, read: Callable[[Path], FoundT], trl: Path) -> FoundT:
    """Runs a side to its end, in a process of its own.

    Args:
        module: full name of the side, which reads `job.json` and writes `found.json`.
        job: what to train; its scratch folder is emptied first and removed afterwards.
        read: reads what the side found.
        trl: folder that holds TRL.

    Raises:
        RuntimeError: it failed; the message ends with what it said.
    """
    scratch = Path(job.scratch)
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    job.write(scratch / "job.json")
    done = subprocess.run(
        [sys.executable, "-m", module, str(scratch / "job.json"), str(scratch / "found.json")],
        cwd=_ROOT,
        env={
            **os.environ,
            **_ALLOCATOR,
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": str(job.num_threads),
            "PYTHONPATH": os.pathsep.join([str(_ROOT), str(trl)]),
        },
        capture_output=True,
        text=True,
        timeout=_LIMIT_S,
    )
    if done.returncode:
        raise RuntimeError(f"{module}: exit {done.returncode}: {done.stderr[-3000:]}")
    found = read(scratch / "found.json")
    shutil.rmtree(scratch)
    return found
