"""`python -m stillhouse.training JOB.json`: the training process, alone or as one of those that torchrun starts.

Answers as `stillhouse.training.launch.messages` describes; everything else, also what libraries print, goes to the
log in the job's work folder, of which each rank but the first has one of its own.
"""

import logging
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import TextIO

from stillhouse.errors import StillhouseError
from stillhouse.processes.exit import die_with_parent, without_teardown
from stillhouse.store.private import private_umask
from stillhouse.training.interruption import Interrupted
from stillhouse.training.job import LOG_FILE, TrainJob
from stillhouse.training.launch.messages import Answers, RankAnswers


def main(job_file: Path, rank: int | None) -> int:
    """Runs the job, as `rank` of several where it is not None; the exit code."""
    # On other hosts nothing of the run's own process is inherited.
    with private_umask():
        return _main(job_file, rank)


def _main(job_file: Path, rank: int | None) -> int:
    job = TrainJob.model_validate_json(job_file.read_bytes())
    job.work_dir.mkdir(parents=True, exist_ok=True)
    stream = _redirect_output(job.work_dir / (f"train-rank{rank}.log" if rank else LOG_FILE))
    answers = (
        Answers(stream) if rank is None else RankAnswers(stream, rank, Path(os.environ["TORCHELASTIC_ERROR_FILE"]))
    )
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        # Imported late: an import that fails is then reported like any other error.
        from stillhouse.training.run import run_job

        answers.done(run_job(job, answers))
        return 0
    except BaseException as error:  # the border of the process: whatever it is, the parent is to hear of it
        # Ranks do not end at the same moment, and torchrun ends the others when the first has.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        return _report(error, job, answers)


def _report(error: BaseException, job: TrainJob, answers: Answers) -> int:
    match error:
        case Interrupted():
            answers.failed(
                f"{job.method}: stopped by SIGTERM; a checkpoint was saved, the same command continues", killed=True
            )
            return 128 + signal.SIGTERM
        case StillhouseError():
            logging.getLogger(__name__).error("%s", error)
            answers.failed(str(error), killed=False)
        case _:
            traceback.print_exception(error)
            answers.failed(f"{job.method}: {type(error).__name__}: {error}", killed=False)
    return 1


def _redirect_output(log: Path) -> TextIO:
    """Sends standard output and error of this process to `log`; a stream to where standard output led before."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    os.close(handle)
    return answers


def _run_as_rank(job_file: Path, rank: int) -> None:
    """Never returns. Threads of gloo outlive its group and abort a process in which Python is shut down meanwhile."""
    die_with_parent()
    exit_code = main(job_file, rank)
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code)


if __name__ == "__main__":
    file = Path(sys.argv[1])
    if "TORCHELASTIC_RUN_ID" in os.environ:
        _run_as_rank(file, int(os.environ["RANK"]))
    with without_teardown():
        sys.exit(main(file, None))
