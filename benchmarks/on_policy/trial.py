"""One side through one training, in a process of its own."""

import shutil
from pathlib import Path
from typing import Literal

from benchmarks.on_policy.sides.job import Found, Job
from benchmarks.sft.trial import run_module

Side = Literal["ours", "trl"]


def run(side: Side, job: Job, trl: Path) -> Found:
    """Runs the side to its end.

    Args:
        side: a module of `benchmarks.on_policy.sides`.
        job: what to train; its scratch folder is emptied first and removed afterwards.
        trl: folder that holds TRL.

    Raises:
        RuntimeError: it failed; the message ends with what it said.
    """
    scratch = Path(job.scratch)
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    job.write(scratch / "job.json")
    run_module(f"benchmarks.on_policy.sides.{side}", scratch, job.num_threads, trl)
    found = Found.read(scratch / "found.json")
    shutil.rmtree(scratch)
    return found
