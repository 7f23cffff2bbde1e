"""Where progress goes: to a terminal when one listens, else into the flow run's log, a line now and then."""

import logging
import time
from typing import ClassVar

from stillhouse.progress import Fact, Progress

_LOG_EVERY_S = 15.0
_logger = logging.getLogger("stillhouse.progress")


class LogProgress:
    """Writes a line per stage at most every few seconds, and one when it is done."""

    def __init__(self) -> None:
        self._written: dict[str, float] = {}

    def update(self, stage: str, done: int, total: int | None, **facts: Fact) -> None:
        """See `Progress.update`."""
        now = time.monotonic()
        if done != total and now - self._written.get(stage, 0.0) < _LOG_EVERY_S:
            return
        self._written[stage] = now
        shown = ", ".join(f"{name}={value}" for name, value in facts.items())
        _logger.info("%s: %s/%s %s", stage, done, "?" if total is None else total, shown)


_listener: Progress = LogProgress()


def show_progress_with(listener: Progress) -> None:
    """Sends the progress of every stage of this process to `listener`."""
    global _listener
    _listener = listener


def progress() -> Progress:
    """The listener of this process."""
    return _listener


class PartProgress:
    """One part of a stage that runs in several parts at once; the listener sees the sum of those that have started.

    Args:
        stage: name shown, whatever the part calls itself.
        part: tells this part from the others.
        total: items of this part.
    """

    _counts: ClassVar[dict[str, dict[str, tuple[int, int]]]] = {}

    def __init__(self, stage: str, part: str, total: int) -> None:
        self._stage = stage
        self._part = part
        self._total = total
        # Seen from the start, since a model that has to be loaded first takes a while.
        self.update(stage, 0, total)

    def update(self, stage: str, done: int, total: int | None, **facts: Fact) -> None:
        """See `Progress.update`; the part's own stage name and total are not shown."""
        counts = self._counts.setdefault(self._stage, {})
        counts[self._part] = (done, self._total)
        sums = [sum(column) for column in zip(*counts.values(), strict=True)]
        progress().update(self._stage, sums[0], sums[1], **facts)
