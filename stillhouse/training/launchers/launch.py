"""Runs a training job in a guarded process of its own and relays what it says. Free of torch.

The child answers on its standard output, one JSON object a line: `{"progress": ...}` as it goes, then `{"done": facts}`
or `{"error": message}`. Its log is `train.log` in the job's work folder.
"""

import json
import logging
import signal
from pathlib import Path
from typing import Final

from stillhouse.errors import TrainingError, TrainingKilled
from stillhouse.processes import GuardedProcess
from stillhouse.progress import Progress
from stillhouse.store.atomic import write_atomic
from stillhouse.training.job import JOB_FILE, LOG_FILE, TrainJob
from stillhouse.types import JsonObject

logger = logging.getLogger(__name__)

_TAIL_LINES: Final = 12


def train(job: TrainJob, progress: Progress) -> JsonObject:
    """Trains to the end, from the newest checkpoint in the job's work folder; the trainer's facts.

    Call it from the main thread, which signals reach: however it is left, the process and all it started are ended.

    Raises:
        TrainingError: the child failed; the message holds its last words.
        TrainingKilled: a signal ended it, the system's for want of memory for instance.
        StoreError: the work folder cannot be written.
    """
    job_file = job.work_dir / JOB_FILE
    write_atomic(job_file, job.model_dump_json(indent=1).encode())
    with GuardedProcess("stillhouse.training", [str(job_file)], env=_environment(job)) as process:
        for line in process.lines:
            message = _message(line)
            if "progress" in message:
                update = message["progress"]
                progress.update(update["stage"], update["done"], update["total"], **update["facts"])
            elif "done" in message:
                return message["done"]
            elif "error" in message:
                raise TrainingError(f"{message['error']} (log: {job.work_dir / LOG_FILE})")
            else:
                logger.info("%s: %s", job.method, line.rstrip())
        raise _died(job, process.wait())


def _environment(job: TrainJob) -> dict[str, str]:
    # Tokenizers warns and slows down when a process that used its threads forks.
    environment = {"TOKENIZERS_PARALLELISM": "false"}
    if job.runtime.num_threads is not None:
        environment["OMP_NUM_THREADS"] = str(job.runtime.num_threads)
    return environment


def _message(line: str) -> JsonObject:
    """The object in a line of the child; empty for a line that some library printed."""
    try:
        message = json.loads(line)
    except ValueError:
        return {}
    return message if isinstance(message, dict) else {}


def _died(job: TrainJob, exit_code: int) -> TrainingError:
    how = f"exit code {exit_code}"
    if exit_code < 0:
        how = f"signal {signal.Signals(-exit_code).name}"
        if -exit_code == signal.SIGKILL:
            how += ", often the system's answer to a lack of memory; lower microbatch_tokens then"
    log = job.work_dir / LOG_FILE
    # A kill is tried again and continued; an error of the training itself would come back.
    kind = TrainingKilled if exit_code < 0 else TrainingError
    return kind(
        f"{job.method}: the training process ended without a result ({how}). Run the same command again to continue "
        f"from the last checkpoint. The end of {log}:\n{_tail(log)}"
    )


def _tail(log: Path) -> str:
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return "(no log was written)"
    return "\n".join(lines[-_TAIL_LINES:])
