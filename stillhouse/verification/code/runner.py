"""CodeRunner on answers from the server that runs them, for any number of threads."""

import atexit
import json
import os
import threading
from typing import Final

from stillhouse.sandbox.client import ANSWER_GRACE_S, JailFailed, SandboxServer, ServerUnavailable, exchange
from stillhouse.sandbox.jail import Permissions
from stillhouse.sandbox.root import SCRATCH
from stillhouse.sandbox.supervisor import CallLimits
from stillhouse.types import JsonObject
from stillhouse.verification.result import VerificationResult

_MODULE: Final = "stillhouse.verification.code.judge"
_ENVIRONMENT: Final = {
    # Equal answers get equal verdicts, also where code prints a set.
    "PYTHONHASHSEED": "0",
    # Libraries of linear algebra otherwise take address space for a thread per processor.
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "TMPDIR": SCRATCH,
}


class CodeRunner:
    """Runs answers, at most one per processor at a time; the server starts with the first."""

    def __init__(self) -> None:
        self._server: SandboxServer | None = None
        self._reset()
        # After a fork the server is the parent's.
        os.register_at_fork(after_in_child=self._reset)
        atexit.register(self.close)

    def run(self, request: JsonObject, max_wall_s: float) -> VerificationResult:
        """Runs an answer and compares its results.

        Args:
            request: as `judge` takes it.
            max_wall_s: wall time of all runs of the answer.
        """
        limits = CallLimits(max_wall_s, request["max_cpu_s"], Permissions())
        try:
            with self._slots, self._running().open_call(limits) as call:
                verdict = exchange(call, json.dumps(request).encode() + b"\n", max_wall_s + ANSWER_GRACE_S)
        except ServerUnavailable as error:
            return VerificationResult(None, f"the code was not run: {error}")
        except JailFailed as error:
            unverified = {
                "no_jail": f"the code was not run, since it cannot be kept in a sandbox here: {error}",
                "lost": f"the code was not run to its end: the sandbox {error}",
            }
            if error.kind in unverified:
                return VerificationResult(None, unverified[error.kind])
            return VerificationResult(False, f"the code {error}")
        return VerificationResult(**verdict)

    def close(self) -> None:
        """Ends the server; a later run starts another."""
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

    def _reset(self) -> None:
        # Kept alive: dropped, its Popen object would warn of a process that is not ours.
        self._inherited, self._server = self._server, None
        self._lock = threading.Lock()
        self._slots = threading.BoundedSemaphore(os.cpu_count() or 1)
