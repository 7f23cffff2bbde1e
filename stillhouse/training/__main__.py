"""`python -m stillhouse.training JOB.json`: the training process, alone or as one of those that torchrun starts."""

import os
import sys
from pathlib import Path

from stillhouse.processes.exit import without_teardown
from stillhouse.training.launch.process import run_as_rank, run_job_file

if __name__ == "__main__":
    job_file = Path(sys.argv[1])
    if "TORCHELASTIC_RUN_ID" in os.environ:
        run_as_rank(job_file, int(os.environ["RANK"]))
    with without_teardown():
        sys.exit(run_job_file(job_file))
