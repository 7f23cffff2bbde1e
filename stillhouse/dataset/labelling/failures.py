"""What a user's functions could not measure, told without a line for every row."""

import logging
from collections import Counter
from typing import Final

logger = logging.getLogger(__name__)

_TOLD_AT: Final = frozenset(10**power for power in range(12))


class Failures:
    """Counts failures by function and warns of the 1st, the 10th, the 100th and so on.

    Args:
        source: the file the functions stand in, for messages.
    """

    def __init__(self, source: str) -> None:
        self._source = source
        self._counts: Counter[str] = Counter()

    def add(self, function: str, trajectory: str, problem: str) -> None:
        """Counts one.

        Args:
            function: its name.
            trajectory: key of the rollout it was given.
            problem: what went wrong, told with the warning.
        """
        self._counts[function] += 1
        count = self._counts[function]
        if count in _TOLD_AT:
            logger.warning(
                "%s: %s gave no score for %d of the trajectories so far, the last of them rollout %s: %s",
                *(self._source, function, count, trajectory, problem),
            )
