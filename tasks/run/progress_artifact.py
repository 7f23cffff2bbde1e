"""Progress of a run's stages: artifacts and lines of log on the flow run's page, and metrics of rollouts in MLflow.

All come from one thread, every few seconds and with the latest state only: a slow server delays no stage, and one that
does not answer costs a warning.
"""

import contextvars
import logging
import re
import threading
from collections.abc import Callable, Mapping
from typing import Final, Self, cast
from uuid import UUID

from prefect.artifacts import create_progress_artifact, update_progress_artifact

from stillhouse.progress.run_state import Bar
from stillhouse.progress.state import RolloutProgress
from stillhouse.progress.text import counted, details_of
from stillhouse.report.markdown import table
from stillhouse.tracking import TrackedRun
from tasks.run.interruption import pause_if_deleted
from tasks.server.temporary_server import has_lasting_server

_INTERVAL_S: Final = 5.0
_LINE_EVERY_S: Final = 60.0
_NUM_BEFORE_ASKING: Final = 6
"""Intervals, half a minute, after which the server is asked whether it still knows the run."""
_JOIN_TIMEOUT_S: Final = 10.0
"""Longest wait for Prefect when the run is done."""
_METRICS: Final = (
    *("done", "failed", "rows_per_s", "tokens_per_s", "in_flight", "limit"),
    *("requests_per_minute", "tokens_per_minute", "usd", "eta_s"),
)
_logger = logging.getLogger("stillhouse.progress")


class ProgressArtifacts:
    """Publishes the latest report of each stage every few seconds, and the last ones when the block ends.

    `bars` returns the reports. A stage that is over sooner than that has its result alone on the page. Enter it inside
    a flow run: the artifacts belong to that run. The step of the metrics in MLflow is in seconds.
    """

    def __init__(
        self, record: TrackedRun, bars: Callable[[], Mapping[str, Bar]], *, every_s: float = _INTERVAL_S
    ) -> None:
        self._record = record
        self._bars = bars
        self._every_s = every_s
        self._published: dict[str, Bar] = {}
        self._artifacts: dict[str, UUID] = {}
        self._told: dict[str, float] = {}
        self._warned = False
        self._ended = threading.Event()
        # Threads do not inherit the context that tells Prefect which flow run this is.
        context = contextvars.copy_context()
        self._thread = threading.Thread(target=context.run, args=(self._publish_all,), name="live-page", daemon=True)

    def __enter__(self) -> Self:
        # The page shows lines of Stillhouse's log too.
        self._has_page = has_lasting_server()
        if self._has_page:
            logging.getLogger("stillhouse").setLevel(logging.INFO)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(_JOIN_TIMEOUT_S)
        logging.getLogger("stillhouse").setLevel(logging.NOTSET)

    def _publish_all(self) -> None:
        ended, number = False, 0
        while not ended:
            ended, number = self._ended.wait(self._every_s), number + 1
            if self._has_page and number % _NUM_BEFORE_ASKING == 0:
                pause_if_deleted()
            for stage, bar in self._bars().items():
                if bar == self._published.get(stage):
                    continue
                self._published[stage] = bar
                if stage == "rollouts" and bar.rollouts is not None:
                    metrics = {f"{stage}/{name}": value for name, value in metrics_of(bar.rollouts).items()}
                    self._record.log_metrics(metrics, step=round(bar.seconds))
                if self._has_page and bar.seconds >= self._every_s:
                    self._show_on_page(stage, bar)
                    # The end has a line of its own, with the stage's result.
                    if bar.done != bar.total and bar.seconds - self._told.get(stage, 0.0) >= _LINE_EVERY_S:
                        self._told[stage] = bar.seconds
                        figures = "; ".join(f"{name} {text}".strip() for name, text in details_of(bar))
                        _logger.info("%s: %s; %s", stage, counted(bar), figures)

    def _show_on_page(self, stage: str, bar: Bar) -> None:
        percent = 100.0 * bar.done / bar.total if bar.total else 0.0
        try:
            if stage in self._artifacts:
                update_progress_artifact(self._artifacts[stage], percent, _table(stage, bar))
            else:
                key = re.sub("[^a-z0-9]+", "-", stage.lower())
                # Typed as a coroutine as well, for callers inside an event loop: this thread has none.
                self._artifacts[stage] = cast(UUID, create_progress_artifact(percent, key, _table(stage, bar)))
        # Whatever Prefect's client or its server raises, the stages go on.
        except Exception as error:
            if not self._warned:
                message = "the flow run's page does not show the progress of %s: %s: %s. The run goes on"
                _logger.warning(message, stage, type(error).__name__, error)
            self._warned = True


def metrics_of(state: RolloutProgress) -> dict[str, float | None]:
    """Return the metrics of a state by name; None where unknown."""
    return {
        **{name: getattr(state, name) for name in _METRICS},
        "rate_limited": state.num_rate_limited,
        "retries": sum(state.retries.values()),
        "usd_projected": None if state.usd_projected is None else state.usd_projected.mean,
    }


def _table(stage: str, bar: Bar) -> str:
    rows = [("done", counted(bar)), *details_of(bar)]
    # Text from an endpoint may hold line breaks.
    return table([stage, ""], [[cell.replace("\n", " ") for cell in row] for row in rows])
