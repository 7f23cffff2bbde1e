"""Progress of running rollouts: a progress artifact on the flow run's page, and metrics in MLflow.

Both are updated from a thread, every few seconds and with the latest state only: a slow server delays no rollout, and
one that does not answer costs a warning.
"""

import contextvars
import logging
import threading
import time
from collections.abc import Callable
from typing import Final, Self, cast
from uuid import UUID

from prefect.artifacts import create_progress_artifact, update_progress_artifact

from stillhouse.progress.state import RolloutProgress
from stillhouse.progress.text import counted, lines_of
from stillhouse.report.markdown import table
from stillhouse.tracking import TrackedRun

_INTERVAL_S: Final = 5.0
_JOIN_TIMEOUT_S: Final = 10.0
"""Longest wait for Prefect when the rollouts are done."""
_METRICS: Final = (
    *("done", "failed", "rows_per_s", "tokens_per_s", "in_flight", "limit"),
    *("requests_per_minute", "tokens_per_minute", "usd", "eta_s"),
)
_logger = logging.getLogger("stillhouse.progress.state")


class ProgressArtifact:
    """A `RolloutWatcher` that publishes the latest state every few seconds, and the last one when the block ends.

    Enter it inside a flow run: the artifact belongs to that run. The step of the metrics in MLflow is in seconds.
    """

    def __init__(
        self, record: TrackedRun, *, every_s: float = _INTERVAL_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._record = record
        self._every_s = every_s
        self._clock = clock
        self._started = clock()
        self._latest: tuple[str, RolloutProgress] | None = None
        self._published: tuple[str, RolloutProgress] | None = None
        self._artifact: UUID | None = None
        self._warned = False
        self._ended = threading.Event()
        # Threads do not inherit the context that tells Prefect which flow run this is.
        context = contextvars.copy_context()
        self._thread = threading.Thread(target=context.run, args=(self._publish_all,), name="live-page", daemon=True)

    def update_rollouts(self, stage: str, state: RolloutProgress) -> None:
        self._latest = (stage, state)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(_JOIN_TIMEOUT_S)

    def _publish_all(self) -> None:
        ended = False
        while not ended:
            ended = self._ended.wait(self._every_s)
            latest = self._latest
            if latest is None or latest == self._published:
                continue
            self._published = latest
            stage, state = latest
            metrics = {f"{stage}/{name}": value for name, value in metrics_of(state).items()}
            self._record.log_metrics(metrics, step=round(self._clock() - self._started))
            self._show_on_page(stage, state)

    def _show_on_page(self, stage: str, state: RolloutProgress) -> None:
        percent = 100.0 * state.done / state.total if state.total else 0.0
        try:
            if self._artifact is None:
                # Typed as a coroutine as well, for callers inside an event loop: this thread has none.
                self._artifact = cast(UUID, create_progress_artifact(percent, stage, _table(stage, state)))
            else:
                update_progress_artifact(self._artifact, percent, _table(stage, state))
        # Whatever Prefect's client or its server raises, the rollouts it watches go on.
        except Exception as error:
            if not self._warned:
                message = "the flow run's page does not show the progress of rollouts: %s: %s. They go on"
                _logger.warning(message, type(error).__name__, error)
            self._warned = True


def metrics_of(state: RolloutProgress) -> dict[str, float | None]:
    """Return the metrics of a state by name; None where unknown."""
    return {
        **{name: getattr(state, name) for name in _METRICS},
        "rate_limited": state.num_rate_limited,
        "retries": sum(state.retries.values()),
        "usd_projected": None if state.usd_projected is None else state.usd_projected.mean,
    }


def _table(stage: str, state: RolloutProgress) -> str:
    rows = [("done", counted(state)), *lines_of(state)]
    # Text from an endpoint may hold line breaks.
    return table([stage, ""], [[cell.replace("\n", " ") for cell in row] for row in rows])
