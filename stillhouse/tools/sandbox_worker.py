"""The server of a user's file: `python -m stillhouse.tools.sandbox_worker FILE CONTROL_SOCKET`."""

import json
import os
import resource
import socket
import sys
from pathlib import Path
from typing import Any

from stillhouse.errors import ConfigError
from stillhouse.sandbox.jail import drop_privileges, run_child
from stillhouse.sandbox.server import problem_with_jail, serve_calls
from stillhouse.sandbox.supervisor import MAX_MEMORY_BYTES, MAX_RESULT_BYTES, JailMain, describe_exit, failure
from stillhouse.tools.context import explain
from stillhouse.tools.user_file import load_module
from stillhouse.types import JsonObject


def _load() -> JailMain:
    problem = problem_with_jail()
    if problem is not None:
        raise ConfigError(f"sandbox=True cannot be kept here: {problem}")
    try:
        functions = vars(load_module(Path(sys.argv[1]), "the sandbox"))
    except ConfigError as error:
        raise ConfigError(
            f"{error}. The sandbox sees the environment variables that tools.environment names, no more"
        ) from error
    return lambda call: _serve(call, functions)


def _serve(call: socket.socket, functions: JsonObject) -> bytes:
    """Have a child of a jail's first process call the function that the request names.

    The request is a line of JSON with `name` and `payload`. The answer holds `value`, or `kind` and `message`.
    """
    drop_privileges()
    with call, call.makefile("rb") as lines:
        request = json.loads(lines.readline())
    # A file: a pipe would have to be emptied while the child runs.
    with os.fdopen(os.memfd_create("answer"), "w+b") as answer:

        def run() -> bytes:
            return json.dumps(_answer(functions[request["name"]], request["payload"])).encode()

        def finish(result: bytes) -> int:
            answer.write(result)
            answer.flush()
            return 0

        code = run_child(run, finish)
        if code != 0:
            return failure("killed", describe_exit(code, resource.getrlimit(resource.RLIMIT_CPU)[0]))
        answer.seek(0)
        return answer.read(MAX_RESULT_BYTES + 1)


def _answer(target: Any, payload: JsonObject) -> JsonObject:
    """Return what the `serve` of a tool or reward returns or raises."""
    try:
        return {"value": target.serve(payload)}
    except MemoryError:
        message = f"MemoryError: at most {MAX_MEMORY_BYTES >> 20} MiB are allowed"
    except BaseException as error:
        message = explain(error)
    return {"kind": "exception", "message": message}


if __name__ == "__main__":
    serve_calls(_load)
