"""Metrics of a training: one value for the steps between two rows of `metrics.jsonl`.

A row is written once however often the training is killed: on resume, rows after the checkpoint are removed, and the
checkpoint holds the steps that no row covers yet.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, Protocol

from stillhouse.errors import StoreError
from stillhouse.store.atomic import sync, unwritable, write_atomic
from stillhouse.types import JsonObject

METRICS_FILE = "metrics.jsonl"

Ratio = tuple[float, float]
"""A numerator and a denominator; over several steps both are summed, then divided."""

LogMetrics = Callable[[dict[str, float], int], None]
"""Receives a row's metrics and its step; must not raise."""


class MetricsLog:
    """The metrics of one training, sent to a listener and written to the file `path`; None keeps none.

    Its rows are `{"step": n, "metrics": {name: value}}` in the order of their steps.
    """

    def __init__(self, path: Path | None, listener: LogMetrics) -> None:
        self._rows = StepRows(path)
        self._listener = listener
        self._window: dict[str, Ratio] = {}
        self._maxima: dict[str, float] = {}
        self.last: dict[str, float] = {}
        """The latest value of every metric."""

    def add(
        self,
        metrics: Mapping[str, float],
        ratios: Mapping[str, Ratio] | None = None,
        maxima: Mapping[str, float] | None = None,
    ) -> None:
        """Add one step's metrics, of which a row has the mean over the steps that have a value.

        Of `ratios` it has the sum of the numerators over the sum of the denominators, of `maxima` the largest.
        """
        for name, (top, bottom) in {
            **{name: (value, 1.0) for name, value in metrics.items()},
            **(ratios or {}),
        }.items():
            sums = self._window.get(name, (0.0, 0.0))
            self._window[name] = (sums[0] + top, sums[1] + bottom)
        for name, value in (maxima or {}).items():
            self._maxima[name] = max(value, self._maxima.get(name, value))

    @property
    def current(self) -> dict[str, float]:
        """Return every metric over the steps since the last row, or its latest value where there are none."""
        return self.last | self._values()

    def write_row(self, step: int, extra: dict[str, float] | None = None) -> None:
        """Write the row of `step` finished steps: the metrics of the steps since the last row, and `extra`."""
        row = {**self._values(), **(extra or {})}
        if not row:
            return
        self._window, self._maxima = {}, {}
        self.last |= row
        self._rows.append([{"step": step, "metrics": row}])
        self._listener(row, step)

    def _values(self) -> dict[str, float]:
        return {name: top / bottom for name, (top, bottom) in self._window.items() if bottom} | self._maxima

    def state(self) -> JsonObject:
        """Return the state for `restore`; syncs the rows written so far."""
        self._rows.sync()
        return {"window": dict(self._window), "maxima": dict(self._maxima), "last": dict(self.last)}

    def restore(self, state: JsonObject | None, step: int, *, replay: bool) -> None:
        """Restore the `state()` after `step` steps, or nothing for None; later rows are removed.

        `replay` sends the remaining rows to the listener, which has not received them yet.
        """
        self._window = {name: (top, bottom) for name, (top, bottom) in state["window"].items()} if state else {}
        self._maxima = dict(state["maxima"]) if state else {}
        self.last = dict(state["last"]) if state else {}
        kept = self._rows.go_back(step if state else -1)
        if replay:
            for row in kept:
                self._listener(row["metrics"], row["step"])


GENERATIONS_FILE: Final = "generations.jsonl"
"""Answers sampled while a training ran."""


class StepRows:
    """A file of JSON lines with a `step` each, which goes back with the training to a checkpoint; None keeps none."""

    def __init__(self, path: Path | None) -> None:
        self._path = path

    def append(self, rows: Iterable[JsonObject]) -> None:
        """Add rows; raise StoreError without space or permission."""
        if self._path is None:
            return
        try:
            with self._path.open("a", encoding="utf-8") as file:
                file.writelines(_line(row) for row in rows)
        except OSError as error:
            raise unwritable(self._path, error) from error

    def read(self) -> list[JsonObject]:
        """Return all rows, without a last line that a crash cut short; raise StoreError if a line is damaged."""
        if self._path is None or not self._path.exists():
            return []
        lines = self._path.read_bytes().split(b"\n")[:-1]
        try:
            return [json.loads(line) for line in lines]
        except ValueError as error:
            raise StoreError(
                f"{self._path}: a line is no JSON: {error}. Mend or delete it: the file shows how a training went, "
                "which does not need it to continue"
            ) from error

    def go_back(self, step: int) -> list[JsonObject]:
        """Remove the rows of later steps than `step`, and return the others; raises as `append` and `read`."""
        kept = [row for row in self.read() if row["step"] <= step]
        if self._path is not None:
            write_atomic(self._path, "".join(map(_line, kept)).encode())
        return kept

    def sync(self) -> None:
        """Sync the file to disk."""
        if self._path is not None and self._path.exists():
            sync(self._path)


def _line(row: JsonObject) -> str:
    return json.dumps(row) + "\n"


class Listener(Protocol):
    """Receives metrics while a training runs, and must not raise; `stillhouse.tracking.TrackedRun` is one."""

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        """Record the metrics of `step`."""

    def log_table(self, rows: Sequence[JsonObject], file: str) -> None:
        """Add rows, which share their keys, to the table `file`."""

    def log_artifact(self, file: Path, subfolder: str | None = None) -> None:
        """Store a copy of a file."""


class NoListener:
    """Ignores everything."""

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        """Do nothing."""

    def log_table(self, rows: Sequence[JsonObject], file: str) -> None:
        """Do nothing."""

    def log_artifact(self, file: Path, subfolder: str | None = None) -> None:
        """Do nothing."""
