"""The process that runs one call."""

import json
import os
import signal
import tempfile
from typing import NoReturn, Protocol

from stillhouse.tools.context import ToolError
from stillhouse.tools.sandbox.limits import MAX_MEMORY_BYTES, die_with, limit_this_process
from stillhouse.types import JsonObject


class Sandboxed(Protocol):
    """Something at the top of a user's file that can run in a sandbox."""

    def serve(self, payload: JsonObject) -> object:
        """What the call described by `payload` gives, as something JSON can carry."""


def work(target: Sandboxed, payload: JsonObject, result: int, home: str, max_cpu_s: int) -> NoReturn:
    """Runs the call within its limits, writes the answer as JSON to the file `result`, and ends the process."""
    status = 1
    try:
        _move_in(home, max_cpu_s)
        answer = json.dumps(_answer(target, payload)).encode()
        with os.fdopen(result, "wb") as file:
            file.write(answer)
        status = 0
    finally:
        # Threads the tool left behind are not waited for.
        os._exit(status)


def _move_in(home: str, max_cpu_s: int) -> None:
    supervisor = os.getppid()
    os.setsid()
    die_with(supervisor)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)
    os.chdir(home)
    os.environ["HOME"] = tempfile.tempdir = home
    limit_this_process(max_cpu_s)


def _answer(target: Sandboxed, payload: JsonObject) -> JsonObject:
    try:
        return {"value": target.serve(payload)}
    except ToolError as error:
        return {"kind": "exception", "message": str(error)}
    except MemoryError:
        return {"kind": "exception", "message": f"MemoryError: at most {MAX_MEMORY_BYTES >> 20} MiB are allowed"}
    except BaseException as error:
        return {"kind": "exception", "message": f"{type(error).__name__}: {error}"}
