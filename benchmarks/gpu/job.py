"""The rows of one job, in a process of its own: `python -m benchmarks.gpu.job PART JOB --row NAME ...`."""

import argparse
import importlib
import logging
import time
from pathlib import Path

from benchmarks.gpu.environment import machine
from benchmarks.gpu.plan import plan
from benchmarks.gpu.results import Results


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part")
    parser.add_argument("job")
    parser.add_argument("--row", action="append", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", required=True)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--model", type=Path)
    parser.add_argument("--commit", required=True)
    parser.add_argument("--limit-s", type=float, required=True)
    chosen = parser.parse_args()
    deadline = time.monotonic() + chosen.limit_s
    logging.basicConfig(level=logging.INFO, format="%(relativeCreated)d ms %(name)s: %(message)s")
    jobs = plan(with_model=chosen.model is not None)
    job = next(job for job in jobs if (job.part, job.name) == (chosen.part, chosen.job))
    # Here, so that a wrong call ends before torch is imported.
    import torch

    from benchmarks.gpu.bench import RowRunner

    module = importlib.import_module(f"benchmarks.gpu.parts.{job.module}")
    runner = RowRunner(
        Results(chosen.out),
        job.part,
        machine(chosen.device, tiny=chosen.tiny, commit=chosen.commit),
        torch.device(chosen.device),
        tiny=chosen.tiny,
        model=chosen.model,
        deadline=deadline,
    )
    runner.run([row for row in job.rows if row.name in chosen.row], module.measure)


if __name__ == "__main__":
    main()
