"""A side in a process of its own, with a time limit."""

import subprocess
import sys
from pathlib import Path
from typing import Final

from benchmarks.json_file import JsonFile

_ROOT: Final = Path(__file__).parents[3]


def run_side(module: str, job: JsonFile, folder: Path, limit_s: float) -> Path:
    """The file in which the module says what it found; it reads the job in `job.json` of the same folder.

    Raises:
        RuntimeError: it failed or took too long; the message is the last line of what it said.
    """
    job.write(folder / "job.json")
    command = [sys.executable, "-m", module, str(folder)]
    try:
        done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, timeout=limit_s)
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"stopped after {limit_s:.0f} s, the rest of the budget") from None
    if done.returncode:
        said = done.stderr.strip().splitlines() or [f"exit {done.returncode}"]
        raise RuntimeError(said[-1])
    return folder / "found.json"
