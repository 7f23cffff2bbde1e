"""CodeRunner on answers from the server that runs them, for any number of threads."""

import atexit
import json
import os
import threading
from typing import Final

from stillhouse.sandbox.client import (
    ANSWER_GRACE_S,
    JailFailed,
    SandboxServer,
    ServerUnavailable,
    exchange,
    read_answer,
)
from stillhouse.sandbox.jail import Permissions
from stillhouse.sandbox.root import SCRATCH
from stillhouse.sandbox.supervisor import CallLimits
from stillhouse.types import JsonObject
from stillhouse.verification.result import VerificationResult

_MODULE: Final = "stillhouse.verification.code.server"
_ENVIRONMENT: Final = {
    # Equal answers get equal verdicts, also where code prints a set.
    "PYTHONHASHSEED": "0",
    # Libraries of linear algebra otherwise take address space for a thread per processor.
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "TMPDIR": SCRATCH,
}


class CodeRunner:
    """Runs answers, as many at a time as there are processors; the server starts with the first."""

    def __init__(self) -> None:
        self._server: SandboxServer | None = None
        self._forget()
        # After a fork it is the parent's.
        os.register_at_fork(after_in_child=self._forget)
        atexit.register(self.close)

    def on(self, question: JsonObject, max_wall_s: float) -> VerificationResult:
        """The finding on an answer.

        Args:
            question: as `judge` takes it.
            max_wall_s: time of all runs of the answer.
        """
        limits = CallLimits(max_wall_s, question["max_cpu_s"], Permissions())
        try:
            with self._places, self._running().open_call(limits) as call:
                answer = exchange(call, json.dumps(question).encode() + b"\n", max_wall_s + ANSWER_GRACE_S)
            found = read_answer(answer)
        except ServerUnavailable as error:
            return VerificationResult(None, f"the code was not run: {error}")
        except JailFailed as error:
            if error.kind == "no_jail":
                return VerificationResult(
                    None, f"the code was not run, since it cannot be kept in a sandbox here: {error}"
                )
            if error.kind == "lost":
                return VerificationResult(None, f"the code was not run to its end: the sandbox {error}")
            return VerificationResult(False, f"the code {error}")
        return VerificationResult(found["verified"], found["note"])

    def close(self) -> None:
        """Ends the server; a later question starts another."""
        with self._lock:
            server, self._server = self._server, None
        if server is not None:
            server.close()

    def _running(self) -> SandboxServer:
        with self._lock:
            if self._server is None or not self._server.is_running:
                if self._server is not None:
                    self._server.close()
                self._server = SandboxServer(_MODULE, [], _ENVIRONMENT)
            return self._server

    def _forget(self) -> None:
        # Kept alive: dropped, its process object would warn of a process that is not ours.
        self._forgotten, self._server = self._server, None
        self._lock = threading.Lock()
        self._places = threading.BoundedSemaphore(os.cpu_count() or 1)
