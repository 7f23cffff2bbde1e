"""When a training has diverged, told apart from noise.

A loss is watched by its mean over the last 20 steps. Training has diverged when that mean, and the loss of most of
those steps, is both

- more than three times the lowest such mean so far: what was learnt is lost; and
- above half the logarithm of the vocabulary's size, in nats: a perplexity of its square root, about as of a model
  that knows how frequent tokens are and nothing of what stands before them.

The first alone would stop trainings that are nearly perfect, where a loss of 0.01 rises to 0.04 by chance; the second
alone would stop models that start from nothing; without most steps, a few wild ones of a small batch would be enough.
While the last step alone is above the limit, training is suspicious and no checkpoint should be written.
"""

import math
import statistics
from collections import deque
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from stillhouse.errors import TrainingError
from stillhouse.training.loop.checkpoint_folder import checkpoint_path, saved_steps
from stillhouse.types import JsonObject, Sample

WINDOW: Final = 20
"""Steps that a mean is taken over."""
_FACTOR: Final = 3.0
_SHOWN_IDS: Final = 8
_SHOWN_VALUES: Final = 5


class DivergenceWatch:
    """Stops a training whose `metric` rises above `_FACTOR` times its lowest mean; None watches nothing.

    `method` and `checkpoints`, the folder of the last good one, are named in the error.
    """

    def __init__(self, method: str, metric: str | None, *, vocabulary_size: int, checkpoints: Path) -> None:
        self._method = method
        self._metric = metric
        self._guess = 0.5 * math.log(vocabulary_size)
        self._checkpoints = checkpoints
        self._recent: deque[float] = deque(maxlen=WINDOW)
        self._lowest = math.inf

    @property
    def is_suspicious(self) -> bool:
        """Return whether divergence may have begun: the last step alone is above the limit."""
        return bool(self._recent) and self._recent[-1] > self._limit

    def observe(self, step: int, metrics: Mapping[str, float], samples: Iterable[Sample]) -> None:
        """Record the metrics of `step`, trained on `samples`; raise a TrainingError where training has diverged."""
        if self._metric is None or self._metric not in metrics:
            return
        self._recent.append(metrics[self._metric])
        mean = math.fsum(self._recent) / len(self._recent)
        if len(self._recent) == WINDOW and min(mean, statistics.median(self._recent)) > self._limit:
            raise self._diverged(step, mean, samples)
        # The first means are over fewer steps: a training that diverges at once has nothing else to be compared with.
        self._lowest = min(self._lowest, mean)

    def state(self) -> JsonObject:
        return {"recent": list(self._recent), "lowest": None if math.isinf(self._lowest) else self._lowest}

    def restore(self, state: JsonObject) -> None:
        self._recent = deque(state["recent"], maxlen=WINDOW)
        self._lowest = math.inf if state["lowest"] is None else state["lowest"]

    @property
    def _limit(self) -> float:
        return max(_FACTOR * self._lowest, self._guess)

    def _diverged(self, step: int, mean: float, samples: Iterable[Sample]) -> TrainingError:
        last = ", ".join(f"{value:.4g}" for value in list(self._recent)[-_SHOWN_VALUES:])
        saved = saved_steps(self._checkpoints)
        good = (
            f"the last good one is {checkpoint_path(self._checkpoints, saved[0])}" if saved else "none was good so far"
        )
        return TrainingError(
            f"{self._method}, step {step}: training has diverged. The mean {self._metric} of the last {WINDOW} steps "
            f"is {mean:.4g} and was {self._lowest:.4g} at best; expected at most {self._limit:.4g}. The last values "
            f"are {last}; this step's prompts are {named_prompts(samples)}. Of the checkpoints {good}. Lower "
            f"{self._method}.learning_rate, raise {self._method}.trainer.warmup_steps or look at these prompts",
            code="diverged",
        )


def named_prompts(samples: Iterable[Sample]) -> str:
    """Return prompt ids for an error message: enough to find the batch, not all of a large one."""
    ids = sorted({sample.prompt_id for sample in samples})
    more = f" and {len(ids) - _SHOWN_IDS} more" if len(ids) > _SHOWN_IDS else ""
    return ", ".join(ids[:_SHOWN_IDS]) + more


class BestValidation:
    """Remembers the step of the lowest validation loss; of equal ones the first.

    Training is to end after `patience` validations in a row without a lower loss; None never ends it.
    """

    def __init__(self, patience: int | None) -> None:
        self._patience = patience
        self._num_worse = 0
        self.step: int | None = None
        """Finished steps at the best validation; None before the first."""
        self.loss: float | None = None
        """The loss there."""

    @property
    def is_exhausted(self) -> bool:
        return self._patience is not None and self._num_worse >= self._patience

    def observe(self, step: int, loss: float) -> bool:
        """Record the validation loss after `step` steps; return whether it is the best so far. NaN never is."""
        if not loss < (math.inf if self.loss is None else self.loss):
            self._num_worse += 1
            return False
        self.step, self.loss, self._num_worse = step, loss, 0
        return True

    def state(self) -> JsonObject:
        return {"step": self.step, "loss": self.loss, "num_worse": self._num_worse}

    def restore(self, state: JsonObject) -> None:
        self.step, self.loss, self._num_worse = state["step"], state["loss"], state["num_worse"]


class Alarms:
    """Watches metrics over many steps, and may end the training. These never do.

    What subclasses report must be a pure function of the metrics observed, so that it continues bit for bit.
    """

    reason_to_stop: str | None = None
    """Why training should stop after the last step observed; None where it should go on."""

    def observe(self, metrics: Mapping[str, float]) -> Mapping[str, float]:
        """Record the metrics of a finished step; return metrics to report. All are by bare name."""
        return {}

    def state(self) -> JsonObject:
        """Return the state for `restore`."""
        return {}

    def restore(self, state: JsonObject) -> None:
        """Restore a `state()`."""
