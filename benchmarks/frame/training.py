"""One training of one side, in a process of its own: its job and its record are JSON files that both share."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, Self, TypeVar

from benchmarks.frame.memory import status_bytes

Precision = Literal["float32", "bfloat16"]

_ROOT: Final = Path(__file__).parents[2]
_TIMEOUT_S: Final = 1_200.0
_ALLOCATOR: Final = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(1 << 34),
    "MALLOC_TOP_PAD_": str(1 << 26),
}
"""Both sides keep freed memory: TRL makes temporaries of hundreds of megabytes, and given back after every operation
their pages cost it more than all of its arithmetic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingJob:
    """One training. What decides its result means the same to both sides."""

    folder: str
    """Made by the benchmark's `write_workload`."""
    scratch: str
    """A folder for this training alone."""
    num_steps: int
    batch_size: int
    """Conversations or completions of one optimiser step."""
    precision: Precision = "float32"
    """Type of computation; the student's weights and the optimiser's state are float32."""
    num_threads: int = 2
    learning_rate: float = 3e-4
    """At the start; a cosine takes it to zero."""
    weight_decay: float = 0.01
    settings: dict[str, Any] = field(default_factory=dict)
    """The side's own, by the names it gives them."""

    @classmethod
    def read(cls, path: Path) -> Self:
        """The job in a file."""
        return cls(**json.loads(path.read_text(encoding="utf-8")))

    def rows(self) -> list[dict[str, Any]]:
        """The workload's rows, in their written order."""
        lines = (Path(self.folder) / "rows.jsonl").read_text(encoding="utf-8").splitlines()
        return [json.loads(line) for line in lines]


class Mark(NamedTuple):
    """Clocks, tokens and memory at the end of a step."""

    wall_s: float
    cpu_s: float
    """Of the process, all its threads together."""
    num_tokens: int
    """Trained on, or sampled, since the start; without padding."""
    peak_bytes: int
    """Peak memory of the process so far."""

    @classmethod
    def now(cls, num_tokens: int) -> Self:
        """This moment."""
        return cls(time.perf_counter(), time.process_time(), num_tokens, status_bytes("VmHWM"))


@dataclass(slots=True)
class TrainingRecord:
    """What a training measured."""

    marks: list[Mark] = field(default_factory=list)
    """At the end of each step."""
    losses: list[float] = field(default_factory=list)
    """Mean over the trained tokens of each step, where every step was logged."""

    @classmethod
    def read(cls, path: Path) -> Self:
        """The record in a file."""
        stored = json.loads(path.read_text(encoding="utf-8"))
        return cls(**{**stored, "marks": [Mark(*mark) for mark in stored["marks"]]})

    def write(self, path: Path) -> None:
        """Writes it to the file."""
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")


@dataclass(frozen=True, slots=True)
class Speed:
    """How fast a training went after its first step, which warms up."""

    tokens_per_s: float
    tokens_per_cpu_s: float
    """Per second of a core; suffers less from other work on the machine."""
    s_per_step: float
    peak_bytes: int

    @classmethod
    def of(cls, marks: Sequence[Mark]) -> Self:
        """The speed of a training of two steps or more."""
        first, last = marks[0], marks[-1]
        num_tokens, wall_s = last.num_tokens - first.num_tokens, last.wall_s - first.wall_s
        return cls(
            tokens_per_s=num_tokens / wall_s,
            tokens_per_cpu_s=num_tokens / (last.cpu_s - first.cpu_s),
            s_per_step=wall_s / (len(marks) - 1),
            peak_bytes=last.peak_bytes,
        )


RecordT = TypeVar("RecordT", bound=TrainingRecord)


def run_side(module: str, job: TrainingJob, record: type[RecordT], trl: Path, num_processes: int = 1) -> RecordT:
    """Runs one side's training to its end.

    Args:
        module: full name of the side, a program that takes the paths of its job and of its record.
        job: the training; its scratch folder is emptied first and removed afterwards.
        record: type of the record.
        trl: folder that holds TRL.
        num_processes: with several, by torchrun, of which the first writes the record.

    Raises:
        RuntimeError: it failed; the message ends with its standard error.
    """
    scratch = Path(job.scratch)
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    (scratch / "job.json").write_text(json.dumps(asdict(job)), encoding="utf-8")
    together = ["torch.distributed.run", "--standalone", f"--nproc-per-node={num_processes}", "-m"]
    launcher = together if num_processes > 1 else []
    done = subprocess.run(
        [sys.executable, "-m", *launcher, module, str(scratch / "job.json"), str(scratch / "record.json")],
        cwd=_ROOT,
        env={
            **os.environ,
            **_ALLOCATOR,
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": str(job.num_threads),
            "PYTHONPATH": os.pathsep.join([str(_ROOT), str(trl)]),
        },
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
    )
    if done.returncode:
        raise RuntimeError(f"{module}: exit {done.returncode}: {done.stderr[-3000:]}")
    result = record.read(scratch / "record.json")
    shutil.rmtree(scratch)
    return result
