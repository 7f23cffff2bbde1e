"""Worker processes for requests that may never return, one request at a time each.

Computer algebra can run endlessly, eat all memory, or crash the interpreter. Such a request costs one worker: it is
killed at the time limit, and the next request starts another. Unlike alarms this works in any thread and after a fork.
"""

import atexit
import json
import os
import resource
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import psutil

from stillhouse.processes.guarded_process import start_isolated
from stillhouse.types import JsonObject

_START_TIMEOUT_S: Final = 60.0
_MAX_STARVED: Final = 10
"""Time limits that may pass on the clock while a worker gets too little of a busy machine to use up one."""
_CHUNK_BYTES: Final = 1 << 16


class WorkerFailed(Exception):
    """A request got no answer; the message says why."""


class WorkerTimeout(WorkerFailed):
    """The answer took too long; the worker was killed."""


class WorkerPool:
    """Workers that run one module, which calls `serve_requests`; started on demand, at most one per processor."""

    def __init__(self, module: str) -> None:
        self._module = module
        self._idle: list[_Worker] = []
        self._inherited: list[_Worker] = []
        self._reset()
        # After a fork the workers are the parent's.
        os.register_at_fork(after_in_child=self._reset)
        atexit.register(self.close)

    def start_one(self) -> None:
        """Start a worker where none is idle, without waiting for it: its imports go on while others work.

        Where it cannot be started, the first request says so.
        """
        with self._lock, suppress(WorkerFailed):
            if not self._idle:
                self._idle.append(_Worker(self._module))

    def request(self, payload: JsonObject, timeout_s: float) -> Any:
        """Return the answer of a worker, which has `timeout_s` of CPU time for it, or ten times that on the clock.

        Raises WorkerTimeout if it did not answer in time, WorkerFailed if it could not be started, or died over it.
        """
        with self._slots:
            with self._lock:
                worker = self._idle.pop() if self._idle else None
            worker = worker or _Worker(self._module)
            try:
                answer = worker.request(payload, timeout_s)
            except BaseException:
                worker.close()
                raise
            with self._lock:
                self._idle.append(worker)
            return answer

    def close(self) -> None:
        """End the idle workers; a later request starts others."""
        with self._lock:
            idle, self._idle = self._idle, []
        for worker in idle:
            worker.close()

    def _reset(self) -> None:
        # Kept alive: dropped, their Popen objects would warn of processes that are not ours.
        self._inherited += self._idle
        self._idle = []
        self._lock = threading.Lock()
        self._slots = threading.BoundedSemaphore(os.cpu_count() or 1)


class _Worker:
    def __init__(self, module: str) -> None:
        self._socket, theirs = socket.socketpair()
        try:
            # Equal requests get equal answers, also where sets are iterated over.
            self._process = start_isolated(module, [], {"PYTHONHASHSEED": "0"}, theirs)
        except OSError as error:
            self._socket.close()
            raise WorkerFailed(f"a worker process cannot be started: {error}") from error
        self._is_ready = False

    def request(self, payload: JsonObject, timeout_s: float) -> Any:
        if not self._is_ready:
            self._receive(_START_TIMEOUT_S)
            self._is_ready = True
        try:
            self._socket.settimeout(timeout_s)
            self._socket.sendall(json.dumps(payload).encode() + b"\n")
        except OSError as error:
            raise WorkerFailed(f"a worker process cannot be reached: {error}") from error
        return self._receive(timeout_s)

    def close(self) -> None:
        self._socket.close()
        self._process.stop()

    def _receive(self, timeout_s: float) -> Any:
        given_up, cpu_limit_s = time.monotonic() + _MAX_STARVED * timeout_s, self._cpu_s() + timeout_s
        left_s = timeout_s
        answer = bytearray()
        while not answer.endswith(b"\n"):
            self._socket.settimeout(max(left_s, 1e-3))
            try:
                chunk = self._socket.recv(_CHUNK_BYTES)
            except TimeoutError as error:
                left_s = min(cpu_limit_s - self._cpu_s(), given_up - time.monotonic())
                if left_s <= 0.0:
                    raise WorkerTimeout(f"no answer within {timeout_s:g} s") from error
                continue
            except OSError as error:
                raise WorkerFailed(f"a worker process cannot be reached: {error}") from error
            if not chunk:
                code = self._process.wait(_START_TIMEOUT_S)
                end = f"with code {code}" if code >= 0 else f"by signal {-code}"
                raise WorkerFailed(f"a worker process ended {end}")
            answer += chunk
        return json.loads(answer)

    def _cpu_s(self) -> float:
        """Return the CPU time of the worker so far, in seconds; 0 where it is gone."""
        try:
            times = psutil.Process(self._process.pid).cpu_times()
        except psutil.Error:
            return 0.0
        return float(times.user + times.system)


def serve_requests(handle: Callable[[JsonObject], Any]) -> None:
    """Answer requests, as a worker's main loop, until the process that started it closes the connection.

    `handle` returns something JSON can carry. What it prints is dropped; what it raises ends the worker.
    """
    # The parent's import path came this way; code run here must not see it.
    os.environ.pop("PYTHONPATH", None)
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, 1)
    os.close(devnull)
    with socket.socket(fileno=int(sys.argv[1])) as connection, connection.makefile("rb") as requests:
        connection.sendall(b"null\n")
        for request in requests:
            connection.sendall(json.dumps(handle(json.loads(request))).encode() + b"\n")


def limit_memory_growth(max_bytes: int) -> None:
    """Let the address space of this process grow by `max_bytes`; beyond that allocations raise MemoryError.

    Does nothing where there is no /proc.
    """
    statm = Path("/proc/self/statm")
    if statm.exists():
        limit = int(statm.read_text().split()[0]) * resource.getpagesize() + max_bytes
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
