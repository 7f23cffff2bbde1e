"""Who hears what is measured while a training runs."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from stillhouse.types import JsonObject


class Listener(Protocol):
    """Receives measurements and must not raise: `stillhouse.tracking.TrackedRun` is one."""

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        """Takes the metrics of `step`."""

    def log_table(self, rows: Sequence[JsonObject], file: str) -> None:
        """Adds rows, which share their keys, to the table `file`."""


class NoListener:
    """Hears nothing."""

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        """Does nothing."""

    def log_table(self, rows: Sequence[JsonObject], file: str) -> None:
        """Does nothing."""
