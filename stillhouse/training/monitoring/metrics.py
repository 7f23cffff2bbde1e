"""Metrics of a training: one value for the steps between two rows of `metrics.jsonl`.

A row is written once however often the training is killed: rows behind the checkpoint that is continued from are cut
off, and the steps that no row covers yet are part of the checkpoint.
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
    """The metrics of one training, in a file and to whoever listens.

    Args:
        path: the file; rows are `{"step": n, "metrics": {name: value}}` in the order of their steps. None keeps none.
        listener: receives each row as it is written.
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
        """Counts one step's metrics in.

        Args:
            metrics: a row has the mean over the steps that had one; a batch without a tool call has no share of valid
                ones.
            ratios: a row has the sum of the numerators over the sum of the denominators.
            maxima: a row has the largest.
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
        """Every metric, over the steps that no row covers yet where there are some, else its latest value."""
        return self.last | self._values()

    def write_row(self, step: int, extra: dict[str, float] | None = None) -> None:
        """Writes what the steps since the row before come to, and `extra` as it is, under `step` finished steps."""
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
        """What `restore` needs; rows written so far are made durable first."""
        self._rows.sync()
        return {"window": dict(self._window), "maxima": dict(self._maxima), "last": dict(self.last)}

    def restore(self, state: JsonObject | None, step: int, *, replay: bool) -> None:
        """Returns to how things stood after `step` steps.

        Args:
            state: what `state()` gave then; None starts anew.
            step: rows of later steps are cut off; with no state all rows are.
            replay: send the rows that stay to the listener, which is not the one that got them at first.
        """
        self._window = {name: (top, bottom) for name, (top, bottom) in state["window"].items()} if state else {}
        self._maxima = dict(state["maxima"]) if state else {}
        self.last = dict(state["last"]) if state else {}
        kept = self._rows.go_back(step if state else -1)
        if replay:
            for row in kept:
                self._listener(row["metrics"], row["step"])


def read_metrics(path: Path) -> list[JsonObject]:
    """Rows of a metrics file; a last line cut short by a crash is left out. An absent file has no rows."""
    return StepRows(path).read()


GENERATIONS_FILE: Final = "generations.jsonl"
"""Answers sampled while a training ran."""


class StepRows:
    """Rows that each hold a `step`, in the order of their steps.

    Args:
        path: the file; absent is empty. None keeps nothing: of the processes that train together one writes.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path

    def append(self, rows: Iterable[JsonObject]) -> None:
        """Adds rows.

        Raises:
            StoreError: no space or no permission.
        """
        if self._path is None:
            return
        try:
            with self._path.open("a", encoding="utf-8") as file:
                file.writelines(_line(row) for row in rows)
        except OSError as error:
            raise unwritable(self._path, error) from error

    def read(self) -> list[JsonObject]:
        """All rows; a last line cut short by a crash is left out.

        Raises:
            StoreError: a line is damaged.
        """
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
        """Leaves the rows of the first `step` steps, and returns them.

        Raises:
            StoreError: no space, no permission, or a line is damaged.
        """
        kept = [row for row in self.read() if row["step"] <= step]
        if self._path is not None:
            write_atomic(self._path, "".join(map(_line, kept)).encode())
        return kept

    def sync(self) -> None:
        """Makes durable what was appended."""
        if self._path is not None and self._path.exists():
            sync(self._path)


def _line(row: JsonObject) -> str:
    return json.dumps(row) + "\n"


class Listener(Protocol):
    """Receives measurements and must not raise: `stillhouse.tracking.TrackedRun` is one."""

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        """Takes the metrics of `step`."""

    def log_table(self, rows: Sequence[JsonObject], file: str) -> None:
        """Adds rows, which share their keys, to the table `file`."""

    def log_artifact(self, file: Path, subfolder: str | None = None) -> None:
        """Takes a copy of a file."""


class NoListener:
    """Hears nothing."""

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        """Does nothing."""

    def log_table(self, rows: Sequence[JsonObject], file: str) -> None:
        """Does nothing."""

    def log_artifact(self, file: Path, subfolder: str | None = None) -> None:
        """Does nothing."""
