"""The training process: runs a job from its file and reports as `launch.messages` describes.

Everything else, including what libraries print, goes to a log in the job's work folder; each rank has its own.
"""

import logging
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import NoReturn

from stillhouse.errors import StillhouseError
from stillhouse.keys import read_env_file
from stillhouse.processes.exit import die_with_parent
from stillhouse.processes.gc_tuning import rarely_collected
from stillhouse.store.private import private_umask
from stillhouse.training.interruption import Interrupted
from stillhouse.training.job import LOG_FILE, TrainJob
from stillhouse.training.launch.messages import MessageWriter


def run_job_file(job_file: Path, rank: int | None = None) -> int:
    """Run the job, as `rank` of several where it is not None; return the exit code."""
    # On other hosts nothing is inherited from the flow's process, neither its keys nor its umask.
    read_env_file()
    with private_umask(job_file.parent):
        job = TrainJob.model_validate_json(job_file.read_bytes())
        job.work_dir.mkdir(parents=True, exist_ok=True)
        log = job.work_dir / (f"train-rank{rank}.log" if rank else LOG_FILE)
        stream = os.fdopen(os.dup(1), "w", encoding="utf-8")
        redirect(1, log)
        redirect(2, log)
        error_file = None if rank is None else Path(os.environ["TORCHELASTIC_ERROR_FILE"])
        messages = MessageWriter(stream, rank or 0, error_file)
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
        logging.getLogger("stillhouse").addHandler(messages)
        try:
            messages.update(job.method, 0, None, doing="importing")
            # Imported late: an import that fails is then reported like any other error.
            with rarely_collected():
                from stillhouse.training.run_job import run_job

            messages.done(run_job(job, messages))
            return 0
        except BaseException as error:  # the border of the process: the parent hears of every error
            # Ranks do not end at the same moment, and torchrun ends the others when the first has.
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            return _report(error, job, messages)


def run_as_rank(job_file: Path, rank: int) -> NoReturn:
    """Run the job as one rank and exit without shutting Python down.

    Threads of gloo outlive its group and would abort a process in which Python is shut down meanwhile.
    """
    die_with_parent()
    exit_code = run_job_file(job_file, rank)
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code)


def _report(error: BaseException, job: TrainJob, messages: MessageWriter) -> int:
    killed, exit_code, code = False, 1, None
    match error:
        case Interrupted():
            message = f"{job.method}: stopped by SIGTERM; a checkpoint was saved, the same command continues"
            killed, exit_code = True, 128 + signal.SIGTERM
        case StillhouseError():
            # For the file alone: the parent raises it.
            logging.getLogger().error("%s", error)
            message, code = str(error), error.code
        case _:
            traceback.print_exception(error)
            message = f"{job.method}: {type(error).__name__}: {error}"
    messages.failed(message, killed=killed, code=code)
    return exit_code


def redirect(descriptor: int, path: Path) -> None:
    """Append to `path` what is written to a file descriptor of this process."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    os.dup2(handle, descriptor)
    os.close(handle)
