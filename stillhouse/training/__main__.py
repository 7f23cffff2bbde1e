"""`python -m stillhouse.training JOB.json`: the training process.

Answers on standard output as `stillhouse.training.launchers.launch` describes; everything else, also what libraries
print, goes to the log in the job's work folder.
"""

import json
import logging
import os
import sys
import traceback
from pathlib import Path
from typing import TextIO

from stillhouse.errors import StillhouseError
from stillhouse.processes import die_with_parent
from stillhouse.progress import Fact
from stillhouse.training.interruption import Interrupted
from stillhouse.training.job import LOG_FILE, TrainJob
from stillhouse.types import JsonObject


class _Relay:
    """Writes progress and the result as JSON lines."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def update(self, stage: str, done: int, total: int | None, **facts: Fact) -> None:
        self.send({"progress": {"stage": stage, "done": done, "total": total, "facts": facts}})

    def send(self, message: JsonObject) -> None:
        self._stream.write(json.dumps(message) + "\n")
        self._stream.flush()


def main(job_file: Path) -> int:
    """Runs the job; the exit code."""
    job = TrainJob.model_validate_json(job_file.read_bytes())
    job.work_dir.mkdir(parents=True, exist_ok=True)
    relay = _Relay(_redirect_output(job.work_dir / LOG_FILE))
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        # Imported late: an import that fails is then reported like any other error.
        from stillhouse.training.run import run_job

        relay.send({"done": run_job(job, relay)})
    except Interrupted:
        relay.send({"error": f"{job.method}: stopped by SIGTERM; a checkpoint was saved, the same command continues"})
        return 143
    except StillhouseError as error:
        logging.getLogger(__name__).error("%s", error)
        relay.send({"error": str(error)})
        return 1
    except Exception as error:  # the border of the process: whatever it is, the parent is to hear of it
        traceback.print_exc()
        relay.send({"error": f"{job.method}: {type(error).__name__}: {error}"})
        return 1
    return 0


def _redirect_output(log: Path) -> TextIO:
    """Sends standard output and error of this process to `log`; a stream to where standard output led before."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    os.close(handle)
    return answers


if __name__ == "__main__":
    die_with_parent()
    sys.exit(main(Path(sys.argv[1])))
