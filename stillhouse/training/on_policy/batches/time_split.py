"""Where the seconds of making a batch of rollouts go."""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal, get_args

Work = Literal["sample", "score", "reward", "sync"]


class TimeSplit:
    """Seconds of each kind of work on one batch, in the thread that makes it.

    Work that goes on elsewhere meanwhile, such as a server that scores while the student samples, costs what is waited
    for it. What training takes is `train_s` of `stillhouse.training.monitoring.throughput`. `clock` gives seconds that
    never go back.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seconds = dict.fromkeys(get_args(Work), 0.0)

    @contextmanager
    def of(self, work: Work) -> Iterator[None]:
        """Count the block as `work`; blocks do not overlap."""
        started = self._clock()
        yield
        self._seconds[work] += self._clock() - started

    def metrics(self) -> dict[str, float]:
        """Return the seconds so far as `sample_s`, `score_s`, `reward_s`, `sync_s`, and their sum `trainer_wait_s`."""
        waited = {"trainer_wait_s": math.fsum(self._seconds.values())}
        return {f"{work}_s": seconds for work, seconds in self._seconds.items()} | waited
