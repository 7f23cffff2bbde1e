"""The process that runs one call of a tool or a reward."""

import json
import os
import resource
import signal
import socket
from collections.abc import Mapping
from typing import Any, BinaryIO, NoReturn, Protocol

from stillhouse.sandbox.jail import give_up_power
from stillhouse.sandbox.limits import MAX_MEMORY_BYTES, MAX_PROCESSES, MAX_RESULT_BYTES
from stillhouse.sandbox.supervisor import Work, failure, how_it_ended
from stillhouse.tools.context import ToolError
from stillhouse.types import JsonObject


class Sandboxed(Protocol):
    """Something at the top of a user's file that can run in a sandbox."""

    def serve(self, payload: JsonObject) -> object:
        """What the call described by `payload` gives, as something JSON can carry."""


def worker_of(functions: Mapping[str, Any]) -> Work:
    """What a jail's first process does: has a child call the `Sandboxed` of these names that the request asks for.

    The request is a line of JSON with `name` and `payload`. The answer holds `value`, or `kind` and `message`.
    """

    def work(call: socket.socket) -> bytes:
        give_up_power(MAX_PROCESSES)
        with call, call.makefile("rb") as lines:
            request = json.loads(lines.readline())
        # Not a pipe, which somebody would have to empty meanwhile.
        with os.fdopen(os.memfd_create("answer"), "w+b") as answer:
            child = os.fork()
            if child == 0:
                _run(functions[request["name"]], request["payload"], answer)
            code = _wait_for(child)
            if code != 0:
                return failure("killed", how_it_ended(code, resource.getrlimit(resource.RLIMIT_CPU)[0]))
            answer.seek(0)
            return answer.read(MAX_RESULT_BYTES + 1)

    return work


def _run(target: Sandboxed, payload: JsonObject, answer: BinaryIO) -> NoReturn:
    status = 1
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        process = os.getpid()
        given = json.dumps(_answer(target, payload)).encode()
        # What the tool forked comes by here as well.
        if os.getpid() == process:
            answer.write(given)
            answer.flush()
            status = 0
    finally:
        # Threads that the tool left behind are not waited for.
        os._exit(status)


def _wait_for(child: int) -> int:
    """The child's exit code, or a signal's number below 0; the orphans of the jail end up here as well."""
    while True:
        pid, status = os.wait()
        if pid == child:
            return os.waitstatus_to_exitcode(status)


def _answer(target: Sandboxed, payload: JsonObject) -> JsonObject:
    try:
        return {"value": target.serve(payload)}
    except ToolError as error:
        return {"kind": "exception", "message": str(error)}
    except MemoryError:
        return {"kind": "exception", "message": f"MemoryError: at most {MAX_MEMORY_BYTES >> 20} MiB are allowed"}
    except BaseException as error:
        return {"kind": "exception", "message": f"{type(error).__name__}: {error}"}
