"""Metrics of a training: means over the steps between two rows of `metrics.jsonl`.

A row is written once however often the training is killed: rows behind the checkpoint that is continued from are cut
off, and the steps that no row covers yet are part of the checkpoint.
"""

import json
import os
from collections.abc import Callable
from pathlib import Path

from stillhouse.types import JsonObject

METRICS_FILE = "metrics.jsonl"

LogMetrics = Callable[[dict[str, float], int], None]
"""Receives a row's metrics and its step; must not raise."""


class MetricsLog:
    """The metrics of one training, in a file and to whoever listens.

    Args:
        path: the file; rows are `{"step": n, "metrics": {name: value}}` in the order of their steps.
        listener: receives each row as it is written.
    """

    def __init__(self, path: Path, listener: LogMetrics) -> None:
        self._path = path
        self._listener = listener
        self._window: list[dict[str, float]] = []
        self.last: dict[str, float] = {}
        """The latest value of every metric."""

    def add(self, metrics: dict[str, float]) -> None:
        """Counts one step's metrics in."""
        self._window.append(metrics)

    def write_row(self, step: int, extra: dict[str, float] | None = None) -> None:
        """Writes the means of the steps since the row before, and `extra` as it is, under `step` finished steps."""
        row = {**self._means(), **(extra or {})}
        if not row:
            return
        self._window = []
        self.last |= row
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"step": step, "metrics": row}) + "\n")
        self._listener(row, step)

    def _means(self) -> dict[str, float]:
        # Not every step has every metric: a batch without a tool call has no share of valid ones.
        names = dict.fromkeys(name for metrics in self._window for name in metrics)
        means = {}
        for name in names:
            values = [metrics[name] for metrics in self._window if name in metrics]
            means[name] = sum(values) / len(values)
        return means

    def state(self) -> JsonObject:
        """What `restore` needs; rows written so far are made durable first."""
        if self._path.exists():
            with self._path.open("rb") as file:
                os.fsync(file.fileno())
        return {"window": list(self._window), "last": dict(self.last)}

    def restore(self, state: JsonObject | None, step: int, *, replay: bool) -> None:
        """Returns to how things stood after `step` steps.

        Args:
            state: what `state()` gave then; None starts anew.
            step: rows of later steps are cut off; with no state all rows are.
            replay: send the rows that stay to the listener, which is not the one that got them at first.
        """
        self._window = list(state["window"]) if state else []
        self.last = dict(state["last"]) if state else {}
        rows = read_metrics(self._path) if state else []
        kept = [row for row in rows if row["step"] <= step]
        partial = self._path.with_suffix(".partial")
        partial.write_text("".join(json.dumps(row) + "\n" for row in kept), encoding="utf-8")
        partial.replace(self._path)
        if replay:
            for row in kept:
                self._listener(row["metrics"], row["step"])


def read_metrics(path: Path) -> list[JsonObject]:
    """Rows of a metrics file; a last line cut short by a crash is left out. An absent file has no rows."""
    if not path.exists():
        return []
    lines = path.read_bytes().split(b"\n")
    return [json.loads(line) for line in lines[:-1]]
