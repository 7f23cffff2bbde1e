"""Messages of a training process on its standard output, one JSON object a line, and how its parent reads them.

`{"progress": ...}` and lines of its own log, `{"log": ...}`, as it goes, then `{"done": facts}` or `{"error": message,
"killed": whether from outside}`. All other output goes to a log in the job's work folder. Free of torch.
"""

import json
import logging
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Final, TextIO

from stillhouse.errors import TrainingError, TrainingKilled
from stillhouse.processes.guarded_process import GuardedProcess
from stillhouse.progress.state import Fact, Progress
from stillhouse.store.atomic import write_atomic
from stillhouse.training.job import LOG_FILE, TrainJob
from stillhouse.types import JsonObject

logger = logging.getLogger(__name__)

GRACE_S: Final = 300.0
"""Longest time a training that is told to stop gets for its checkpoint, which takes minutes for a large model."""
EXIT_S: Final = 30.0
"""Longest time a training that is done gets to exit by itself."""
TAIL_LINES: Final = 12


class MessageWriter(logging.Handler):
    """Writes a training's messages to `stream`; a `stillhouse.progress.state.Progress`, and a handler of log records.

    Of several ranks only the first writes to its stream; errors go to the `error_file` that torchrun reads when all
    ranks have ended.
    """

    def __init__(self, stream: TextIO, rank: int = 0, error_file: Path | None = None) -> None:
        super().__init__()
        self._stream, self._rank, self._error_file = stream, rank, error_file

    def update(self, stage: str, done: int, total: int | None, **facts: Fact) -> None:
        self._send({"progress": {"stage": stage, "done": done, "total": total, "facts": facts}})

    def emit(self, record: logging.LogRecord) -> None:
        args = [value if isinstance(value, int | float) else str(value) for value in record.args or ()]
        self._send({"log": [record.name, record.levelno, str(record.msg), args]})

    def done(self, facts: JsonObject) -> None:
        self._send({"done": facts})

    def failed(self, error: str, *, killed: bool, at: float | None = None, code: str | None = None) -> None:
        """Report the end by an error; where it was `killed` from outside, the same training is worth another try.

        `at` is in seconds since 1970, None for now: of several hosts the first to fail is believed. `code` is the
        error's own.
        """
        at = time.time() if at is None else at
        if self._error_file is None:
            self._send({"error": error, "killed": killed, "at": at, "code": code})
        else:
            # `message` and whole seconds are what torchrun reads and prints on hosts where nobody else listens.
            entry = {"message": error, "timestamp": int(at), "at": at, "killed": killed}
            write_atomic(self._error_file, json.dumps(entry).encode())

    def _send(self, message: JsonObject) -> None:
        if self._rank == 0:
            self._stream.write(json.dumps(message) + "\n")
            self._stream.flush()


def follow(process: GuardedProcess, job: TrainJob, progress: Progress) -> JsonObject:
    """Relay the messages of `process` until it has trained; return the trainer's facts."""
    log = job.work_dir / LOG_FILE
    for line in process.lines:
        message = parse_message(line)
        relay(message, progress)
        if "done" in message:
            with suppress(subprocess.TimeoutExpired):
                process.wait(EXIT_S)
            return message["done"]
        if "error" in message:
            kind = TrainingKilled if message["killed"] else TrainingError
            raise kind(f"{message['error']} (log: {log})", code=message.get("code"))
        if not message.keys() & {"progress", "log"}:
            logger.info("%s: %s", job.method, line.rstrip())
    exit_code = process.wait()
    # A kill is tried again and continued; an error of the training itself would come back.
    kind = TrainingKilled if exit_code < 0 else TrainingError
    raise kind(
        f"{job.method}: the training process ended without a result ({exit_reason(exit_code)}). Run the same command "
        f"again to continue from the last checkpoint. The end of {log}:\n{tail(log)}"
    )


def exit_reason(exit_code: int) -> str:
    if exit_code >= 0:
        return f"exit code {exit_code}"
    reason = f"signal {signal.Signals(-exit_code).name}"
    if -exit_code == signal.SIGKILL:
        reason += ", often the system's answer to a lack of memory; lower microbatch_tokens then"
    return reason


def relay(message: JsonObject, progress: Progress) -> None:
    """Pass on progress, or a line of the child's log, if a message has either."""
    if "log" in message:
        name, level, text, args = message["log"]
        logging.getLogger(name).log(level, text, *args)
    elif "progress" in message:
        update = message["progress"]
        progress.update(update["stage"], update["done"], update["total"], **update["facts"])


def parse_message(line: str) -> JsonObject:
    """Return the object in a line of a training's output; empty for a line that some library printed."""
    try:
        message = json.loads(line)
    except ValueError:
        return {}
    return message if isinstance(message, dict) else {}


def tail(log: Path) -> str:
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return "(no log was written)"
    return "\n".join(lines[-TAIL_LINES:])
