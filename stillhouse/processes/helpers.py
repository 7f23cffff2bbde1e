"""Processes that answer questions which may take for ever, one at a time each.

Computer algebra can run endlessly, eat all memory, or crash the interpreter. A question put to a helper costs a helper
at worst: it is killed when its time is over, and the next question starts another. This works in any thread and after a
fork, unlike alarms; a helper dies with the process that asked.
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
from pathlib import Path
from typing import Any, Final

from stillhouse.processes.children import GuardedProcess, die_with_parent
from stillhouse.types import JsonObject

_PASSED_ON: Final = ("PATH", "LANG")
_START_TIMEOUT_S: Final = 60.0
_CHUNK: Final = 1 << 16


class HelperFailed(Exception):
    """A question got no answer; the message says why."""


class HelperTimeout(HelperFailed):
    """The answer took too long; the helper is no more."""


class Helpers:
    """Helpers that run one module, as many as there are threads asking, up to the number of processors.

    Args:
        module: calls `answer_questions` when it is run.
    """

    def __init__(self, module: str) -> None:
        self._module = module
        self._idle: list[_Helper] = []
        self._forget()
        # After a fork they are the parent's.
        os.register_at_fork(after_in_child=self._forget)
        atexit.register(self.close)

    def ask(self, question: JsonObject, timeout_s: float) -> Any:
        """What a helper answers.

        Raises:
            HelperTimeout: it did not answer in time.
            HelperFailed: it could not be started, or died over the question.
        """
        with self._places:
            helper = self._take()
            try:
                answer = helper.ask(question, timeout_s)
            except BaseException:
                helper.close()
                raise
            with self._lock:
                self._idle.append(helper)
            return answer

    def close(self) -> None:
        """Ends the idle helpers; a later question starts others."""
        with self._lock:
            idle, self._idle = self._idle, []
        for helper in idle:
            helper.close()

    def _take(self) -> "_Helper":
        with self._lock:
            if self._idle:
                return self._idle.pop()
        return _Helper(self._module)

    def _forget(self) -> None:
        # Kept alive: dropped, their process objects would warn of processes that are not ours.
        self._forgotten, self._idle = self._idle, []
        self._lock = threading.Lock()
        self._places = threading.BoundedSemaphore(os.cpu_count() or 1)


class _Helper:
    def __init__(self, module: str) -> None:
        self._socket, theirs = socket.socketpair()
        environment = {
            **{name: os.environ[name] for name in _PASSED_ON if name in os.environ},
            "PYTHONPATH": os.pathsep.join(sys.path),
            # Equal questions get equal answers, also where sets are walked through.
            "PYTHONHASHSEED": "0",
        }
        number = theirs.fileno()
        try:
            with theirs:
                self._process = GuardedProcess(module, [str(number)], environment, inherit_env=False, pass_fds=[number])
        except OSError as error:
            self._socket.close()
            raise HelperFailed(f"a helper process cannot be started: {error}") from error
        try:
            self._receive(_START_TIMEOUT_S)
        except BaseException:
            self.close()
            raise

    def ask(self, question: JsonObject, timeout_s: float) -> Any:
        try:
            self._socket.settimeout(timeout_s)
            self._socket.sendall(json.dumps(question).encode() + b"\n")
        except OSError as error:
            raise HelperFailed(f"a helper process cannot be reached: {error}") from error
        return self._receive(timeout_s)

    def close(self) -> None:
        self._socket.close()
        self._process.stop()

    def _receive(self, timeout_s: float) -> Any:
        deadline = time.monotonic() + timeout_s
        answer = bytearray()
        while not answer.endswith(b"\n"):
            self._socket.settimeout(max(deadline - time.monotonic(), 1e-3))
            try:
                part = self._socket.recv(_CHUNK)
            except TimeoutError as error:
                raise HelperTimeout(f"no answer within {timeout_s:g} s") from error
            except OSError as error:
                raise HelperFailed(f"a helper process cannot be reached: {error}") from error
            if not part:
                raise HelperFailed(f"a helper process ended{self._how()}")
            answer += part
        return json.loads(answer)

    def _how(self) -> str:
        code = self._process.wait(_START_TIMEOUT_S)
        return f" with code {code}" if code >= 0 else f" by signal {-code}"


def answer_questions(answer: Callable[[JsonObject], Any]) -> None:
    """What a helper's module does: answers the questions of the process that started it until that closes the line.

    Args:
        answer: gives something JSON can carry. What it prints is dropped; what it raises ends the helper.
    """
    die_with_parent()
    # The path of the asking process came this way; it is no variable for what the helper runs to see.
    os.environ.pop("PYTHONPATH", None)
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 1)
    os.close(nothing)
    with socket.socket(fileno=int(sys.argv[1])) as line, line.makefile("rb") as questions:
        line.sendall(b"null\n")
        for question in questions:
            line.sendall(json.dumps(answer(json.loads(question))).encode() + b"\n")


def limit_own_memory(max_bytes: int) -> None:
    """Called by a helper at its start: lets its address space grow by `max_bytes` and no more.

    What needs more raises MemoryError. Does nothing where the kernel does not say what a process uses.
    """
    statm = Path("/proc/self/statm")
    if statm.exists():
        most = int(statm.read_text().split()[0]) * resource.getpagesize() + max_bytes
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
