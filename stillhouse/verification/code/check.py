"""Answers in Python that must pass tests: `python`."""

import atexit
import json
import math
import os
import threading
from collections.abc import Sequence
from contextlib import suppress
from decimal import Decimal, InvalidOperation
from typing import Any, Final

from stillhouse.sandbox.client import ANSWER_GRACE_S, JailFailed, SandboxServer, ServerUnavailable, exchange
from stillhouse.sandbox.jail import SCRATCH, Permissions
from stillhouse.sandbox.supervisor import CallLimits
from stillhouse.types import JsonObject, PromptMetadata
from stillhouse.verification.code.blocks import python_code, tested_names
from stillhouse.verification.code.cases import programs_of
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
        self._inherited: list[SandboxServer] = []
        self._reset()
        # After a fork the server is the parent's.
        os.register_at_fork(after_in_child=self._reset)
        atexit.register(lambda: self._server.close())

    def run(self, request: JsonObject, max_wall_s: float) -> VerificationResult:
        """Run an answer as `judge` takes it, within this wall time, and compare its results."""
        limits = CallLimits(max_wall_s, request["max_cpu_s"], Permissions())
        try:
            with self._slots, self._server.open_call(limits) as call:
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

    def _reset(self) -> None:
        self._server = SandboxServer(_MODULE, [], _ENVIRONMENT)
        # Kept alive: dropped, its Popen object would warn of a process that is not ours.
        self._inherited.append(self._server)
        self._slots = threading.BoundedSemaphore(os.cpu_count() or 1)


MAX_CPU_S: Final = 10
"""Default of `metadata["time_limit_s"]`: processor time of each run of the code, in seconds."""
_WALL_SHARE: Final = 6.0
"""Wall time of all runs of one answer over the processor time of one; it ends code that sleeps or waits."""

_RUNNER: Final = CodeRunner()


def python(answer: str, metadata: PromptMetadata) -> VerificationResult:
    """Return right if the code in the answer passes the tests, in a jail as the package describes.

    The tests are `metadata["test_cases"]`, else the expected answer, in one of `cases.FORMS`. Code that crashes or
    exceeds a limit is wrong. Tests that cannot be run, or a machine without a sandbox, leave it unverified.
    """
    test_cases = metadata.metadata.get("test_cases") or metadata.expected_answer
    try:
        programs = programs_of(test_cases, metadata.metadata)
        max_cpu_s = _time_limit(metadata.metadata.get("time_limit_s"))
    except ValueError as error:
        return VerificationResult(None, str(error))
    tested = _tested(programs)
    code = python_code(answer, tested)
    if code is None:
        return VerificationResult(False, "the answer holds no Python")
    request = {"code": code, "programs": programs, "max_cpu_s": max_cpu_s}
    return _RUNNER.run(request, max_cpu_s * _WALL_SHARE)._replace(compared=_head(code, tested))


def _head(code: str, tested: Sequence[str]) -> str:
    """Return the line that first mentions a name under test, else the first line: it tells which code was run."""
    lines = [line.strip() for line in code.splitlines() if line.strip()]
    return next((line for line in lines if any(name in line for name in tested)), lines[0] if lines else "")


def _time_limit(value: Any) -> int:
    if value is None:
        return MAX_CPU_S
    with suppress(InvalidOperation):
        limit = Decimal(str(value))
        if limit.is_finite() and limit > 0:
            return math.ceil(limit)
    raise ValueError(f"expected metadata.time_limit_s to be a number above 0, saw {value!r}")


def _tested(programs: Sequence[JsonObject]) -> list[str]:
    """Return the names under test, those that are called by name first; none for programs that are run."""
    calls = [call["name"] for program in programs for call in program.get("calls", ())]
    entry_points = [program["entry_point"] for program in programs if program.get("entry_point")]
    used = [name for program in programs if "tests" in program for name in tested_names(program["tests"])]
    return list(dict.fromkeys([*calls, *entry_points, *used]))
