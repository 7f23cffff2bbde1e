"""Answers in Python that must pass tests: `python`."""

import math
import re
from decimal import Decimal, InvalidOperation
from typing import Final

from stillhouse.types import PromptMetadata
from stillhouse.verification.code.block import python_code
from stillhouse.verification.code.cases import function_name, programs_of
from stillhouse.verification.code.verdicts import Verdicts
from stillhouse.verification.finding import Finding

MAX_CPU_S: Final = 10
"""Processor time of each run of the code, in seconds, unless `metadata["time_limit_s"]` says otherwise."""
_WALL_SHARE: Final = 6.0
"""Wall time of all runs of one answer over the processor time of one: it also ends what sleeps or waits."""

_VERDICTS: Final = Verdicts()
_IMPORTED: Final = re.compile(r"^from solution import (\w+)", re.MULTILINE)


def python(answer: str, metadata: PromptMetadata) -> Finding:
    """Right where the code in the answer passes the tests; see the package for what the code is kept from.

    The tests are `metadata["test_cases"]`, else the expected answer, in one of `cases.FORMS`. Code that crashes, takes
    too long, or wants more memory or processes than it may have is wrong. Tests that cannot be run, and a machine on
    which there is no sandbox for the code, leave it unverified.
    """
    test_cases = metadata.metadata.get("test_cases") or metadata.expected_answer
    try:
        programs = programs_of(test_cases, metadata.metadata)
        max_cpu_s = _time_limit(metadata)
    except ValueError as error:
        return Finding(None, str(error))
    imported = _IMPORTED.search("\n".join(program.get("tests", "") for program in programs))
    calls = next((program["calls"] for program in programs if "calls" in program), None)
    named = calls[0]["name"] if calls else imported[1] if imported else function_name(test_cases, metadata.metadata)
    code = python_code(answer, named)
    if code is None:
        return Finding(False, "the answer holds no Python")
    max_wall_s = max_cpu_s * _WALL_SHARE
    return _VERDICTS.on({"code": code, "programs": programs, "max_cpu_s": max_cpu_s}, max_wall_s)


def _time_limit(metadata: PromptMetadata) -> int:
    value = metadata.metadata.get("time_limit_s")
    if value is None:
        return MAX_CPU_S
    try:
        limit = Decimal(str(value))
    except InvalidOperation:
        limit = Decimal(0)
    if not limit.is_finite() or limit <= 0:
        raise ValueError(f"expected metadata.time_limit_s to be a number above 0, saw {value!r}")
    return math.ceil(limit)
