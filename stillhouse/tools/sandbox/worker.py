"""The server of a user's file: `python -m stillhouse.tools.sandbox.worker FILE CONTROL_SOCKET`."""

import json
import os
import resource
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from stillhouse.errors import ConfigError
from stillhouse.sandbox.child import fork_child, wait_for_child
from stillhouse.sandbox.jail import drop_privileges
from stillhouse.sandbox.limits import MAX_MEMORY_BYTES, MAX_PROCESSES, MAX_RESULT_BYTES
from stillhouse.sandbox.server import ForkServer, problem_with_jail
from stillhouse.sandbox.supervisor import JailMain, describe_exit, failure
from stillhouse.tools.context import ToolError
from stillhouse.tools.user_file import load_module
from stillhouse.types import JsonObject


class _Callable(Protocol):
    def serve(self, payload: JsonObject) -> object:
        """Runs the call described by `payload`; returns something JSON can carry."""


def _jail_main(functions: Mapping[str, Any]) -> JailMain:
    """Runs in a jail's first process: has a child call the function that the request names.

    The request is a line of JSON with `name` and `payload`. The answer holds `value`, or `kind` and `message`.
    """

    def main(call: socket.socket) -> bytes:
        drop_privileges(MAX_PROCESSES)
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

            code = wait_for_child(fork_child(run, finish))
            if code != 0:
                return failure("killed", describe_exit(code, resource.getrlimit(resource.RLIMIT_CPU)[0]))
            answer.seek(0)
            return answer.read(MAX_RESULT_BYTES + 1)

    return main


def _answer(target: _Callable, payload: JsonObject) -> JsonObject:
    try:
        return {"value": target.serve(payload)}
    except ToolError as error:
        return {"kind": "exception", "message": str(error)}
    except MemoryError:
        return {"kind": "exception", "message": f"MemoryError: at most {MAX_MEMORY_BYTES >> 20} MiB are allowed"}
    except BaseException as error:
        return {"kind": "exception", "message": f"{type(error).__name__}: {error}"}


def _main() -> None:
    server = ForkServer()
    problem = problem_with_jail()
    if problem is not None:
        server.refuse(f"sandbox=True cannot be kept here: {problem}")
        return
    try:
        module = load_module(Path(sys.argv[1]), "the sandbox")
    except ConfigError as error:
        server.refuse(f"{error}. The sandbox sees the environment variables that tools.environment names, no more")
        return
    server.serve(socket.socket(fileno=int(sys.argv[2])), _jail_main(vars(module)))


if __name__ == "__main__":
    _main()
