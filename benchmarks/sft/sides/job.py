"""What a side is asked to do, and what it found: JSON files that the benchmark and its child share."""

import hashlib
import json
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

from benchmarks.json_file import JsonFile
from benchmarks.memory import status_bytes
from stillhouse.training.loop.batching.order import Mixture

Precision = Literal["float32", "bfloat16"]


@dataclass(frozen=True, slots=True)
class Job(JsonFile):
    """One training. What decides its result means the same to both sides."""

    folder: str
    """Made by `write_workload`."""
    scratch: str
    """A folder of this run's own."""
    num_steps: int
    batch_size: int
    """Conversations of one optimiser step."""
    precision: Precision = "float32"
    """Type of computation; weights and the optimiser's state are float32."""
    num_threads: int = 2
    learning_rate: float = 3e-4
    """At the start; a cosine leads it to zero."""
    weight_decay: float = 0.01
    with_losses: bool = False
    """Log the loss of every step, where that is not done anyhow."""
    settings: dict[str, Any] = field(default_factory=dict)
    """The side's own, by the names it gives them."""

    def rows(self) -> list[dict[str, Any]]:
        """The conversations, as written."""
        lines = (Path(self.folder) / "rows.jsonl").read_text(encoding="utf-8").splitlines()
        return [json.loads(line) for line in lines]

    def order(self, num_rows: int) -> Mixture:
        """Which of the rows each step trains on."""
        num_epochs = -(-self.num_steps * self.batch_size // num_rows)
        return Mixture((num_rows,), (1.0,), self.batch_size, num_epochs, seed=0)


class Mark(NamedTuple):
    """How things stood at the end of a step."""

    wall_s: float
    cpu_s: float
    """Of the process, all its threads together."""
    num_tokens: int
    """Of the conversations trained on since the start; padding is left out."""
    peak_bytes: int
    """Most memory the process has held."""

    @classmethod
    def now(cls, num_tokens: int) -> Self:
        """This moment."""
        return cls(time.perf_counter(), time.process_time(), num_tokens, status_bytes("VmHWM"))


@dataclass(slots=True)
class Found(JsonFile):
    """What a training left."""

    marks: list[Mark] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    """Mean over the supervised tokens of each step, where every step was logged."""
    rows: str = ""
    """Fingerprint of token ids and masks in the order of training; empty where a side packs before it trains."""

    @classmethod
    def read(cls, path: Path) -> Self:
        """What is in the file."""
        stored = json.loads(path.read_text(encoding="utf-8"))
        return cls(**{**stored, "marks": [Mark(*mark) for mark in stored["marks"]]})


def fingerprint(rows: Iterable[tuple[Sequence[int], Sequence[bool]]]) -> str:
    """Of token ids and loss masks up to the last target: our rows end there, TRL's with the newline of the template."""
    digest = hashlib.sha256()
    for ids, mask in rows:
        end = max(index for index, is_target in enumerate(mask) if is_target) + 1
        digest.update(json.dumps([list(ids[:end]), [int(one) for one in mask[:end]]]).encode())
    return digest.hexdigest()[:16]
