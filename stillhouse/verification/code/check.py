"""Answers in Python that must pass tests: `python`."""

import ast
import math
import re
import textwrap
from contextlib import suppress
from decimal import Decimal, InvalidOperation
from typing import Any, Final

from stillhouse.types import PromptMetadata
from stillhouse.verification.code.cases import function_name, programs_of
from stillhouse.verification.code.runner import CodeRunner
from stillhouse.verification.result import VerificationResult

MAX_CPU_S: Final = 10
"""Default of `metadata["time_limit_s"]`: processor time of each run of the code, in seconds."""
_WALL_SHARE: Final = 6.0
"""Wall time of all runs of one answer over the processor time of one; it ends code that sleeps or waits."""

_RUNNER: Final = CodeRunner()
_IMPORTED: Final = re.compile(r"^from solution import (\w+)", re.MULTILINE)
_FENCED: Final = re.compile(
    r"^[ \t]*(?P<fence>```+|~~~+)[ \t]*(?P<language>[\w+.-]*)[^\n]*\n(?P<code>.*?)(?:^[ \t]*(?P=fence)[ \t]*$|\Z)",
    re.MULTILINE | re.DOTALL,
)
_PYTHON: Final = frozenset({"python", "python3", "py", "py3"})


def python(answer: str, metadata: PromptMetadata) -> VerificationResult:
    """Right if the code in the answer passes the tests, in a jail as the package describes.

    The tests are `metadata["test_cases"]`, else the expected answer, in one of `cases.FORMS`. Code that crashes or
    exceeds a limit is wrong. Tests that cannot be run, or a machine without a sandbox, leave it unverified.
    """
    test_cases = metadata.metadata.get("test_cases") or metadata.expected_answer
    try:
        programs = programs_of(test_cases, metadata.metadata)
        max_cpu_s = _time_limit(metadata.metadata.get("time_limit_s"))
    except ValueError as error:
        return VerificationResult(None, str(error))
    imported = _IMPORTED.search("\n".join(program.get("tests", "") for program in programs))
    calls = next((program["calls"] for program in programs if "calls" in program), None)
    tested = calls[0]["name"] if calls else imported[1] if imported else function_name(test_cases, metadata.metadata)
    code = python_code(answer, tested)
    if code is None:
        return VerificationResult(False, "the answer holds no Python")
    request = {"code": code, "programs": programs, "max_cpu_s": max_cpu_s}
    return _RUNNER.run(request, max_cpu_s * _WALL_SHARE)


def _time_limit(value: Any) -> int:
    if value is None:
        return MAX_CPU_S
    with suppress(InvalidOperation):
        limit = Decimal(str(value))
        if limit.is_finite() and limit > 0:
            return math.ceil(limit)
    raise ValueError(f"expected metadata.time_limit_s to be a number above 0, saw {value!r}")


def python_code(answer: str, defining: str | None) -> str | None:
    """The last fenced block of Python, or the whole answer if that is Python, else None.

    Args:
        answer: the final answer.
        defining: a name that the code must define: the last block that does is preferred to later ones, which often
            show its use.
    """
    blocks = [
        textwrap.dedent(block["code"])
        for block in _FENCED.finditer(answer)
        if block["language"].lower() in _PYTHON or not block["language"]
    ]
    if defining:
        definition = re.compile(
            rf"^\s*(?:async\s+def|def|class)\s+{re.escape(defining)}\b|^{re.escape(defining)}\s*=", re.M
        )
        blocks = [code for code in blocks if definition.search(code)] or blocks
    if blocks:
        return blocks[-1]
    # Deep nesting raises either of the last two.
    with suppress(SyntaxError, ValueError, RecursionError, MemoryError):
        return answer if ast.parse(answer).body else None
    return None
