"""The process between the server and one call's worker: it keeps the limits and leaves nothing behind."""

import json
import math
import os
import select
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final, NoReturn

from stillhouse.tools.sandbox.limits import (
    MAX_PROCESSES,
    MAX_RESULT_BYTES,
    adopt_orphans,
    descendants,
    kill_descendants,
    num_threads,
)
from stillhouse.tools.sandbox.worker import work
from stillhouse.types import JsonObject

_LOOK_EVERY_S: Final = 0.02


def supervise(call: socket.socket, functions: Mapping[str, Any], folder: str) -> NoReturn:
    """Runs the one call that `call` asks for, answers there, and ends the process.

    Args:
        call: carries a line of JSON with `name`, `payload` and `timeout_s`, and an answer: `value`, or `kind` and
            `message`. Closed by the caller, it ends the call.
        functions: the names of the loaded file.
        folder: where the worker's own folder is made.
    """
    status = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        # Apart from the server's group: it outlives a killed server until its worker is gone.
        os.setsid()
        adopt_orphans()
        request = _read_line(call)
        if request:
            home = tempfile.mkdtemp(prefix="stillhouse-tool-", dir=folder)
            try:
                answer = _run(call, json.loads(request), functions, home)
            finally:
                kill_descendants()
                shutil.rmtree(home, ignore_errors=True)
            # The caller may have gone meanwhile.
            with suppress(OSError):
                call.sendall(answer)
        status = 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        # Never back into the server's loop, and past what its file registered for the end of the process.
        os._exit(status)


def _read_line(call: socket.socket) -> bytes:
    parts = []
    while part := call.recv(1 << 16):
        parts.append(part)
        if part.endswith(b"\n"):
            return b"".join(parts)
    return b""


def _run(call: socket.socket, request: JsonObject, functions: Mapping[str, Any], home: str) -> bytes:
    num_before = num_threads()
    results, result = os.pipe()
    timeout_s = request["timeout_s"]
    max_cpu_s = math.ceil(timeout_s)
    deadline = time.monotonic() + timeout_s
    worker = os.fork()
    if worker == 0:
        call.close()
        os.close(results)
        work(functions[request["name"]], request["payload"], result, home, max_cpu_s)
    os.close(result)
    watched = select.poll()
    ended = os.pidfd_open(worker)
    for handle in (results, ended, call.fileno()):
        watched.register(handle, select.POLLIN)
    got = bytearray()
    while True:
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            return _failed("timeout", f"did not return within {timeout_s:g} s")
        ready = {handle for handle, _ in watched.poll(1000 * min(left_s, _LOOK_EVERY_S))}
        if call.fileno() in ready:
            return b""
        if results in ready:
            part = os.read(results, 1 << 20)
            got += part
            if not part:
                watched.unregister(results)
        elif ended in ready:
            return _end(bytes(got), os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1]), max_cpu_s)
        if len(got) > MAX_RESULT_BYTES:
            return _failed("killed", f"returned more than {MAX_RESULT_BYTES} bytes")
        if num_threads() > num_before + MAX_PROCESSES and len(descendants(os.getpid())) > MAX_PROCESSES:
            return _failed("killed", f"started more than {MAX_PROCESSES} processes")


def _end(got: bytes, code: int, max_cpu_s: int) -> bytes:
    if code == 0 and got:
        return got
    if code == -signal.SIGXCPU:
        return _failed("killed", f"used more than {max_cpu_s} s of processor time")
    if code < 0:
        return _failed("killed", f"was killed by {signal.Signals(-code).name}")
    return _failed("killed", f"ended its process with code {code} before it returned")


def _failed(kind: str, message: str) -> bytes:
    return json.dumps({"kind": kind, "message": message}).encode()
