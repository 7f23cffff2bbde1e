"""Metrics and progress of a training, and whether it should stop: the trainer reports every step here."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final, TypeVar

from stillhouse.config import TrainerConfig
from stillhouse.progress.state import Progress
from stillhouse.training.loop.method import Batch, Method
from stillhouse.training.loop.passes import PassResult
from stillhouse.training.loop.stopping import Alarms, BestValidation, DivergenceWatch
from stillhouse.training.monitoring.metrics import METRICS_FILE, Listener, MetricsLog
from stillhouse.training.monitoring.throughput import Throughput
from stillhouse.types import JsonObject

T = TypeVar("T")

_LATEST: Final = ("epoch", "learning_rate")
"""Metrics of which a row has the latest value, since their mean over steps means nothing."""
_DETAIL: Final = re.compile(r"^([^/]+)/(?!(\w+_)?(loss|nll|accuracy|kl|divergence|reward|entropy)$)([^/]+)$")
"""A metric other than those that tell how the student does; MLflow charts groups by name, and nine of each at first."""
_SHOWN: Final = ("learning_rate", "tokens_per_s")


class Watch:
    """Turns results of steps into metrics under the method's name, and tells the trainer when to stop.

    Of several ranks the first `keeps_rows`: it writes `metrics.jsonl`.
    """

    def __init__(
        self,
        method: Method,
        config: TrainerConfig,
        throughput: Throughput,
        *,
        vocabulary_size: int,
        work_dir: Path,
        keeps_rows: bool,
        progress: Progress,
        listener: Listener,
        alarms: Alarms,
    ) -> None:
        self._method = method
        self._progress = progress
        self.metrics = MetricsLog(
            work_dir / METRICS_FILE if keeps_rows else None,
            lambda metrics, step: listener.log_metrics(
                {_DETAIL.sub(r"\1/details/\4", name): value for name, value in metrics.items()}, step
            ),
        )
        self.divergence = DivergenceWatch(
            method.name,
            method.guarded,
            vocabulary_size=vocabulary_size,
            checkpoints=work_dir / "checkpoints",
        )
        self.alarms = alarms
        self.best = BestValidation(config.early_stopping_patience)
        self.throughput = throughput
        self.checkpoint = 0
        """Step of the last one saved."""
        self._latest: dict[str, float] = {}

    def add(self, batch: Batch, result: PassResult, update: Mapping[str, float]) -> None:
        """Add the metrics of a finished step; `update` has those of its weight update."""
        # Steps count by their tokens, as they do in the method's own metrics.
        loss = (result.loss * result.num_targets, float(result.num_targets))
        ratios = {"loss": loss, **result.ratios, **self.throughput.end_step(result.groups)}
        alarms = self.alarms.observe({**batch.metrics, **result.metrics})
        metrics = {**batch.metrics, **update, **alarms}
        self._latest = {name: metrics.pop(name) for name in _LATEST if name in metrics}
        self.metrics.add(self._named(metrics), self._named(ratios), self._named(result.maxima))

    def write_row(self, step: int, measured: Mapping[str, float]) -> None:
        """Write the metrics of the steps since the row before, and those `measured` after `step` finished steps."""
        self.metrics.write_row(step, self._named({**self._latest, **measured, **self.throughput.gauges()}))

    def show(self, step: int) -> None:
        """Show progress after `step` steps, which are all steps when patience has run out."""
        bare = {name.partition("/")[2]: value for name, value in self.metrics.current.items()} | self._latest
        num_steps = step if self.best.is_exhausted else self._method.num_steps
        shown = {name: bare[name] for name in (*self._method.headline, *_SHOWN) if name in bare}
        if self.checkpoint:
            shown["checkpoint"] = self.checkpoint
        if self.throughput.eta_s is not None and step < num_steps:
            shown["eta_s"] = self.throughput.eta_s
        self._progress.update(self._method.name, step, num_steps, **shown)

    def say(self, step: int, doing: str) -> None:
        """Show after `step` steps what keeps the training from the next one."""
        num_steps = step if self.best.is_exhausted else self._method.num_steps
        self._progress.update(self._method.name, step, num_steps, doing=doing)

    def state(self) -> JsonObject:
        """Return the state for `restore`."""
        return {
            "metrics": self.metrics.state(),
            "divergence": self.divergence.state(),
            "best": self.best.state(),
            "alarms": self.alarms.state(),
        }

    def restore(self, state: JsonObject | None, step: int, *, replay: bool) -> None:
        """Restore a `state()` after `step` steps, or start anew without one; metrics of later steps are removed.

        `replay` sends the remaining metrics to the listener, which has not received them yet.
        """
        self.checkpoint = step
        self.metrics.restore(state["metrics"] if state else None, step, replay=replay)
        if state is not None:
            self.divergence.restore(state["divergence"])
            self.best.restore(state["best"])
            self.alarms.restore(state["alarms"])

    def _named(self, metrics: Mapping[str, T]) -> dict[str, T]:
        return {f"{self._method.name}/{name}": value for name, value in metrics.items()}
