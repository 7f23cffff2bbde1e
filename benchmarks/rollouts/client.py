"""A client's process: started, watched, killed, and what it took."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

import psutil

_POLL_S: Final = 0.05
_LOOK_AT_MEMORY_S: Final = 0.2
_ROOT: Final = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Took:
    """What a client's process took."""

    wall_s: float
    cpu_s: float
    """With that of its children, imports left out where the client says when they were done."""
    peak_rss_mb: float
    """Of the process and its children together, seen five times a second."""
    exit_code: int
    ended: str
    """`itself`, `killed` by the requested stop, or `late`."""


class Client:
    """A side at work on a job, in a process group of its own."""

    def __init__(self, python: Path, side: str, job_file: Path) -> None:
        self._folder = job_file.parent
        self._ready = self._folder / "ready.json"
        self._ready.unlink(missing_ok=True)
        with (self._folder / "log.txt").open("ab") as log:
            self._process = subprocess.Popen(
                [python, "-m", f"benchmarks.rollouts.sides.{side}", job_file],
                cwd=_ROOT,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(_ROOT)},
            )
        self._started = time.time()
        self._peak_rss = 0
        self._looked_at_memory = 0.0

    def watch(self, stop: Callable[[], bool], limit_s: float) -> Took:
        """Waits until it ends, `stop` asks to kill it, or it is late."""
        ended = "itself"
        while (reaped := os.wait4(self._process.pid, os.WNOHANG))[0] == 0:
            self._look_at_memory()
            if ended == "itself" and stop():
                ended = "killed"
                self.kill()
            elif ended == "itself" and time.time() - self._started > limit_s:
                ended = "late"
                self.kill()
            time.sleep(_POLL_S)
        _, status, usage = reaped
        self._process.returncode = os.waitstatus_to_exitcode(status)
        self.kill()
        cpu_s = usage.ru_utime + usage.ru_stime - self._imports_s()
        # Not ru_maxrss: it begins with that of the process that forked.
        peak_rss_mb = self._peak_rss / 2**20
        return Took(time.time() - self._started, cpu_s, peak_rss_mb, self._process.returncode, ended)

    def kill(self) -> None:
        """`kill -9` of the whole process group."""
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            return

    def _imports_s(self) -> float:
        return float(json.loads(self._ready.read_text(encoding="utf-8"))["cpu_s"]) if self._ready.exists() else 0.0

    def _look_at_memory(self) -> None:
        if time.time() - self._looked_at_memory < _LOOK_AT_MEMORY_S:
            return
        self._looked_at_memory = time.time()
        try:
            process = psutil.Process(self._process.pid)
            family = [process, *process.children(recursive=True)]
            self._peak_rss = max(self._peak_rss, sum(one.memory_info().rss for one in family))
        except psutil.Error:
            return

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.kill()
        if self._process.returncode is None:
            self._process.wait()
