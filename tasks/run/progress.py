"""Progress of a process: told to a listener, such as a terminal, or to nobody."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from stillhouse.errors import StillhouseError
from stillhouse.progress.run_state import Listener
from stillhouse.progress.state import RecentRate, RolloutProgress, add_up_rollouts

_listener = Listener()


@contextmanager
def shown_by(listener: Listener) -> Iterator[None]:
    """Send the progress of every stage of this process to `listener` inside the block."""
    global _listener
    before, _listener = _listener, listener
    try:
        yield
    finally:
        _listener = before


def progress() -> Listener:
    return _listener


class _Stage:
    """A stage of `total` rollouts in several parts at once, whose sum is shown."""

    def __init__(self, name: str, total: int) -> None:
        self._name = name
        self._total = total
        self._listener = progress()
        self._parts: dict[str, RolloutProgress] = {}
        self._rows, self._tokens = RecentRate(), RecentRate()
        self._newest: RolloutProgress | None = None
        self._lock = threading.Lock()

    def update(self, part: str, state: RolloutProgress, now: float) -> None:
        """Pass the new sum on, under the lock, so that the listener gets no older sum after a newer one."""
        with self._lock:
            self._parts[part] = state
            # A part without a request yet knows of no limit.
            if state.limit > 0 or self._newest is None:
                self._newest = state
            total = add_up_rollouts(list(self._parts.values()), total=self._total, newest=self._newest)
            # Parts begin and end within moments: their own speeds do not add up.
            total = replace(
                total,
                rows_per_s=self._rows.per_second(total.done - total.num_replayed, now),
                tokens_per_s=self._tokens.per_second(total.num_tokens, now),
            )
            self._listener.update_rollouts(self._name, total)

    def saved(self) -> str:
        """Return what all parts together have finished, in a sentence."""
        with self._lock:
            finished = sum(state.done - state.failed for state in self._parts.values())
        return (
            f"Saved: {finished} of {self._total} finished, in all shards of the stage {self._name!r} together, and "
            "every answer that came in"
        )


_stages: dict[str, _Stage] = {}


@contextmanager
def rollout_stage(name: str, total: int) -> Iterator[None]:
    """Show the parts called `name` as one stage of `total` rollouts inside the block.

    A StillhouseError of the block also says what all parts together have saved.
    """
    stage = _stages[name] = _Stage(name, total)
    try:
        yield
    except StillhouseError as error:
        raise type(error)(f"{str(error).rstrip('.')}. {stage.saved()}", code=error.code) from error
    finally:
        del _stages[name]


class PartProgress:
    """One part, of `total` rollouts, of a stage; shown alone, or with the others inside `rollout_stage`."""

    def __init__(
        self,
        stage: str,
        part: str,
        total: int,
        clock: Callable[[], float] = time.monotonic,
        *,
        is_local: bool = False,
    ) -> None:
        self._stage = _stages.get(stage) or _Stage(stage, total)
        self._part = part
        self._total = total
        self._clock = clock
        self._is_local = is_local
        # Shown from the start, since a model that has to be loaded first takes a while.
        self.show(RolloutProgress(done=0, total=total, usd=0.0, is_local=is_local))

    def show(self, state: RolloutProgress) -> None:
        """Show the state of the part, but for its own total."""
        self._stage.update(self._part, replace(state, total=self._total), self._clock())

    def finish(self, facts: Mapping[str, Any]) -> None:
        """Show a part as done that was sampled in a process that does not report; `facts` are of its artifact."""
        done = RolloutProgress(
            done=self._total,
            total=self._total,
            failed=facts["failed"],
            num_tokens=facts["completion_tokens"],
            usd=facts["cost_usd"],
            is_local=self._is_local,
        )
        self.show(done)

    def skip(self) -> None:
        """Show a part as done whose result was in the cache."""
        done = RolloutProgress(done=self._total, total=self._total, num_replayed=self._total, usd=0.0)
        self.show(done)
