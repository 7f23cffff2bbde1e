"""The project's tests that are marked `gpu`. A rehearsal on a CPU collects them, which imports all that they need.

Only files with such tests are named to pytest, since others import packages that a machine for training lacks.
"""

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final
from xml.etree import ElementTree

from benchmarks.gpu.bench import Bench
from benchmarks.gpu.environment import ROOT
from benchmarks.gpu.plan import Row

_COMMAND: Final = (
    "-m",
    "pytest",
    "-m",
    "gpu",
    "--tb=short",
    "-p",
    "no:cacheprovider",
    "-W",
    "ignore::pytest.PytestConfigWarning",
)
_MARK: Final = "mark.gpu"
_MESSAGE_LENGTH: Final = 300


def measure(row: Row, bench: Bench) -> None:
    """Runs them, and records which failed and how."""
    command = [sys.executable, *_COMMAND, *gpu_test_files()]
    if not bench.on_gpu:
        done = subprocess.run([*command, "--collect-only"], cwd=ROOT, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"the tests cannot be collected: {_last_line(done.stdout + done.stderr)}")
        bench.record({"collected": _last_line(done.stdout)})
        return
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        # Its lines go to the log as they come, so that tests that are cut off have told which they were.
        code = subprocess.run([*command, "-v", f"--junitxml={report}"], cwd=ROOT).returncode
        if not report.is_file():
            raise RuntimeError(f"pytest exited with {code} and wrote no report")
        bench.record(outcome(ElementTree.parse(report).getroot()))


def gpu_test_files() -> list[str]:
    """The files of tests in which the mark is used, relative to the checkout."""
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    return [str(file.relative_to(ROOT)) for file in files if _MARK in file.read_text(encoding="utf-8")]


def outcome(report: ElementTree.Element) -> dict[str, Any]:
    """Counts, and the failures with their messages, of a JUnit report."""
    cases = list(report.iter("testcase"))
    bad = {case: failure for case in cases for failure in (*case.iter("failure"), *case.iter("error"))}
    skipped = [case for case in cases if case.find("skipped") is not None]
    return {
        "passed": len(cases) - len(bad) - len(skipped),
        "failed": len(bad),
        "skipped": len(skipped),
        "failures": {
            f"{case.get('classname')}::{case.get('name')}": (failure.get("message") or "")[:_MESSAGE_LENGTH]
            for case, failure in bad.items()
        },
    }


def _last_line(output: str) -> str:
    lines = [line for line in output.splitlines() if line.strip()]
    return lines[-1] if lines else "no output"
