"""What a stage says about how far it is; who shows it is decided outside.

A stage calls `Progress.update`; a terminal draws bars, a log writes lines, a test counts.
"""

from typing import Protocol

Fact = str | int | float


class Progress(Protocol):
    """Receives the state of one stage. Calls are cheap; a listener thins them out."""

    def update(self, stage: str, done: int, total: int | None, **facts: Fact) -> None:
        """Reports that `done` of `total` items of `stage` are finished.

        Args:
            stage: name shown to a person, for instance `rollouts`.
            done: items finished.
            total: items in all; None when not known.
            facts: what a person wants to see beside the bar, for instance `tokens_per_s=512.0`.
        """


class NoProgress:
    """Shows nothing."""

    def update(self, stage: str, done: int, total: int | None, **facts: Fact) -> None:
        """Does nothing."""
