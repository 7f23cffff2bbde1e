"""Who hears what is measured while a training runs."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from stillhouse.types import JsonObject


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
