"""`python -m stillhouse.training.launch.agent JOB.json`: torchrun as a guarded process.

Its processes are in sessions of their own, so that the guard of this one does not reach them: they see to it themselves
that they die with it. The first rank answers on the standard output of this process; when a rank fails, this process
answers in its place, with the words of the rank that failed first.
"""

import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.run import parse_args, run

from stillhouse.processes.exit import announce_parent
from stillhouse.training.job import LOG_FILE, TrainJob
from stillhouse.training.launch.messages import Answers, ending
from stillhouse.training.launch.torchrun import torchrun_arguments


def run_ranks(job: TrainJob, arguments: Sequence[str], log: Path) -> int:
    """Runs the ranks of this host to their end; the exit code.

    Args:
        job: what they train.
        arguments: of torchrun.
        log: gets what torchrun itself has to say. Standard output stays the ranks' way to whoever listens.
    """
    answers = Answers(sys.stdout)
    handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(handle, 2)
    os.close(handle)
    announce_parent()
    try:
        run(parse_args(list(arguments)))
    except ChildFailedError as error:
        # The parent stops this process as soon as it has heard.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        message, killed = cause(error.failures)
        answers.failed(message, killed=killed)
        return 1
    except SignalException as error:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        answers.failed(
            f"{job.method}: stopped by {error.sigval.name}; the same command continues from the last checkpoint",
            killed=True,
        )
        return 128 + error.sigval
    return 0


def cause(failures: Mapping[int, ProcessFailure]) -> tuple[str, bool]:
    """Why the ranks ended, and whether something from outside ended them.

    A rank that is killed leaves no words, but those that miss it then do; the others torchrun itself ends, by SIGTERM.
    So a kill counts before all words, and of words the earliest.
    """
    for rank, failure in failures.items():
        if failure.exitcode < 0 and failure.exitcode != -signal.SIGTERM:
            return f"rank {rank} ended without a result ({ending(failure.exitcode)})", True
    words = [failure.error_file_data for failure in failures.values() if "at" in failure.error_file_data]
    if words:
        first = min(words, key=lambda entry: entry["at"])
        return first["message"], first["killed"]
    rank, failure = min(failures.items())
    return f"rank {rank} ended without a result ({ending(failure.exitcode)})", failure.exitcode < 0


if __name__ == "__main__":
    file = Path(sys.argv[1])
    train_job = TrainJob.model_validate_json(file.read_bytes())
    torchrun = torchrun_arguments(train_job, 0, file, train_job.runtime.rendezvous)
    sys.exit(run_ranks(train_job, torchrun, train_job.work_dir / LOG_FILE))
