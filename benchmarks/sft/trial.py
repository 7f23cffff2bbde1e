"""One side through one training, in a process of its own."""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from benchmarks.sft.sides.job import Found, Job, Mark

Side = Literal["ours", "trl"]
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


def run(side: Side, job: Job, trl: Path) -> Found:
    """Runs the side to its end.

    Args:
        side: a module of `benchmarks.sft.sides`.
        job: what to train; its scratch folder is emptied first and removed afterwards.
        trl: folder that holds TRL.

    Raises:
        RuntimeError: it failed; the message ends with what it said.
    """
    scratch = Path(job.scratch)
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    job.write(scratch / "job.json")
    run_module(f"benchmarks.sft.sides.{side}", scratch, job.num_threads, trl)
    found = Found.read(scratch / "found.json")
    shutil.rmtree(scratch)
    return found


def run_module(module: str, scratch: Path, num_threads: int, trl: Path) -> None:
    """Runs a side that reads `job.json` in the scratch folder and writes `found.json` there, in a process of its own.

    Args:
        module: its full name.
        scratch: this run's own.
        num_threads: of torch.
        trl: folder that holds TRL.

    Raises:
        RuntimeError: it failed; the message ends with what it said.
    """
    done = subprocess.run(
        [sys.executable, "-m", module, str(scratch / "job.json"), str(scratch / "found.json")],
        cwd=_ROOT,
        env={
            **os.environ,
            **_ALLOCATOR,
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": str(num_threads),
            "PYTHONPATH": os.pathsep.join([str(_ROOT), str(trl)]),
        },
        capture_output=True,
        text=True,
        timeout=_LIMIT_S,
    )
    if done.returncode:
        raise RuntimeError(f"{module}: exit {done.returncode}: {done.stderr[-3000:]}")
