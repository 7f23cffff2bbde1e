"""The training loop: optimiser, schedule, microbatches, clipping, checkpoints and logging, whatever the method.

The loss of a step is the sum over the loss positions of the whole batch divided by their number, so that neither the
split into microbatches nor the lengths of samples weigh anything. Dimensions: N loss positions.
"""

import logging
import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
from torch import Tensor, nn

from stillhouse.config import TrainerConfig
from stillhouse.errors import TrainingError
from stillhouse.progress import Progress
from stillhouse.training.batching.microbatches import collate, num_targets, split_microbatches
from stillhouse.training.checkpoints.checkpoint import Checkpoint, load_newest_checkpoint, save_checkpoint
from stillhouse.training.checkpoints.random_state import random_state, restore_random_state
from stillhouse.training.head.scores import Predictions
from stillhouse.training.interruption import Interrupted, InterruptOnSigterm
from stillhouse.training.method import Batch, Method
from stillhouse.training.optimisation.optimizer import adamw
from stillhouse.training.optimisation.schedule import learning_rate
from stillhouse.training.student.student import Student
from stillhouse.training.watching.metrics import METRICS_FILE, LogMetrics, MetricsLog
from stillhouse.types import JsonObject, Sample

logger = logging.getLogger(__name__)

_SHOWN_IDS: Final = 8


class Trainer:
    """Trains `student` by `method` for `method.num_steps` steps, from the newest checkpoint if there is one.

    Args:
        method: supplies batches and the loss.
        student: the model; its trained parameters are changed in place.
        config: optimiser, schedule, intervals.
        work_dir: holds `checkpoints/` and `metrics.jsonl`.
        identity: what the result depends on; checkpoints of another identity are refused.
        progress: told of every step.
        listener: receives the rows of metrics.
        tracking_run_id: the run behind `listener`; rows are sent again when a checkpoint was made under another.
        clock: seconds, for speeds and durations only.
    """

    def __init__(
        self,
        method: Method,
        student: Student,
        config: TrainerConfig,
        *,
        work_dir: Path,
        identity: JsonObject,
        progress: Progress,
        listener: LogMetrics = lambda metrics, step: None,
        tracking_run_id: str | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._method = method
        self._student = student
        self._config = config
        self._checkpoints = work_dir / "checkpoints"
        self._identity = identity
        self._progress = progress
        self._tracking_run_id = tracking_run_id
        self._clock = clock
        self._metrics = MetricsLog(work_dir / METRICS_FILE, listener)
        self._parameters = dict(student.trained_parameters())
        self._optimizer = adamw(self._parameters.values(), config)
        self._step = 0
        self._random = random_state()
        self._totals: dict[str, float] = {"seconds": 0.0, "trained_tokens": 0, "sampled_tokens": 0}

    def run(self) -> JsonObject:
        """Trains to the end; the facts of the whole training, its earlier attempts included.

        Raises:
            TrainingError: a loss or gradient is not finite, or the checkpoint found is of another training.
            StoreError: a checkpoint cannot be written.
            Interrupted: SIGTERM; a checkpoint was saved.
        """
        resumed_from = self._resume()
        num_steps = self._method.num_steps
        logger.info("%s: %d of %d steps are done", self._method.name, self._step, num_steps)
        with InterruptOnSigterm() as interruption:
            if resumed_from is None:
                self._metrics.write_row(0, self._named(self._method.validate()))
            while self._step < num_steps:
                try:
                    self._train_one_step(interruption)
                except Interrupted:
                    # A step was cut off before it touched the weights, or is whole: they are those after
                    # `self._step` steps, and `self._random` belongs to them.
                    self._save()
                    raise
        return self._facts(resumed_from)

    def _train_one_step(self, interruption: InterruptOnSigterm) -> None:
        started = self._clock()
        rate = learning_rate(self._config, self._step, self._method.num_steps)
        batch = self._method.batch(self._step)
        metrics = self._backward(batch)
        with interruption.deferred():
            for group in self._optimizer.param_groups:
                group["lr"] = rate
            self._optimizer.step()
            self._optimizer.zero_grad()
            self._step += 1
            seconds = self._clock() - started
            num_tokens = sum(len(sample.token_ids) for sample in batch.samples)
            metrics |= {"learning_rate": rate, "tokens_per_s": num_tokens / max(seconds, 1e-9)}
            self._metrics.add(self._named(metrics))
            self._totals["seconds"] += seconds
            self._totals["trained_tokens"] += num_targets(batch.samples)
            self._totals["sampled_tokens"] += batch.num_sampled_tokens
            self._close_step()

    def _close_step(self) -> None:
        is_last = self._step == self._method.num_steps
        is_checkpoint = is_last or self._step % self._config.checkpoint_every_steps == 0
        if is_checkpoint or self._step % self._config.log_every_steps == 0:
            validation = self._method.validate() if is_checkpoint else {}
            self._metrics.write_row(self._step, self._named(validation))
        self._random = random_state()
        if is_checkpoint:
            self._save()
        bare = {name.partition("/")[2]: value for name, value in self._metrics.last.items()}
        shown = {name: bare[name] for name in (*self._method.headline, "tokens_per_s") if name in bare}
        self._progress.update(self._method.name, self._step, self._method.num_steps, **shown)

    def _backward(self, batch: Batch) -> dict[str, float]:
        """Accumulates the gradient of the batch, clips it, and returns the step's metrics."""
        count = num_targets(batch.samples)
        if count == 0:
            raise TrainingError(
                f"step {self._step}: the batch has no token to train on; prompts {_ids(batch.samples)}. "
                "Check that prompts leave room for a completion in the model's context"
            )
        self._student.model.train()
        groups = split_microbatches(batch.samples, self._config.microbatch_tokens)
        results = [self._backward_microbatch(group, count) for group in groups]
        norm = nn.utils.clip_grad_norm_(self._parameters.values(), self._config.max_grad_norm).item()
        losses = torch.stack([result.loss for result in results]).tolist()
        if not all(map(math.isfinite, [*losses, norm])):
            raise self._not_finite(groups, losses, norm)
        return batch.metrics | {"loss": sum(losses), "grad_norm": norm} | _combined(results, count)

    def _backward_microbatch(self, group: list[Sample], count: int) -> "_MicrobatchResult":
        microbatch = collate(group, self._student.device)
        with self._student.precision():
            hidden_NH = self._student.hidden_states(microbatch.inputs_BT).flatten(0, 1)
            predictions = Predictions(hidden_NH.index_select(0, microbatch.positions_N), self._student.head)
            token_losses = self._method.loss(predictions, microbatch)
        loss = token_losses.losses_N.sum() / count
        loss.backward()
        return _MicrobatchResult(
            loss=loss.detach(),
            sums={name: values_N.sum() for name, values_N in token_losses.means.items()},
            maxima={name: values_N.max() for name, values_N in token_losses.maxima.items()},
        )

    def _not_finite(self, groups: list[list[Sample]], losses: list[float], norm: float) -> TrainingError:
        bad = [group for group, loss in zip(groups, losses, strict=True) if not math.isfinite(loss)]
        samples = [sample for group in bad or groups for sample in group]
        return TrainingError(
            f"{self._method.name}, step {self._step}: loss {sum(losses)}, gradient norm {norm}; expected finite "
            f"values; prompts {_ids(samples)}. The last checkpoint in {self._checkpoints} stands. Lower "
            f"{self._method.name}.learning_rate, or set student.dtype to float32"
        )

    def _resume(self) -> int | None:
        checkpoint = load_newest_checkpoint(self._checkpoints, self._identity)
        if checkpoint is None:
            self._metrics.restore(None, 0, replay=False)
            return None
        with torch.no_grad():
            for name, parameter in self._parameters.items():
                parameter.copy_(checkpoint.weights[name])
        self._optimizer.load_state_dict(checkpoint.optimizer)
        self._random = checkpoint.random[0]
        restore_random_state(self._random)
        self._step = checkpoint.step
        self._totals = dict(checkpoint.progress["totals"])
        other_run = checkpoint.progress["tracking_run_id"] != self._tracking_run_id
        self._metrics.restore(checkpoint.progress["metrics"], checkpoint.step, replay=other_run)
        return self._step

    def _save(self) -> None:
        checkpoint = Checkpoint(
            step=self._step,
            weights={name: p.detach().cpu().contiguous() for name, p in self._parameters.items()},
            optimizer=self._optimizer.state_dict(),
            random=[self._random],
            identity=self._identity,
            progress={
                "totals": self._totals,
                "metrics": self._metrics.state(),
                "tracking_run_id": self._tracking_run_id,
            },
        )
        keep = self._config.keep_checkpoints
        logger.info("saved %s", save_checkpoint(self._checkpoints, checkpoint, keep=keep, best_step=None))

    def _named(self, metrics: dict[str, float]) -> dict[str, float]:
        return {f"{self._method.name}/{name}": value for name, value in metrics.items()}

    def _facts(self, resumed_from: int | None) -> JsonObject:
        return {
            "steps": self._step,
            **{name: round(value, 3) if name == "seconds" else int(value) for name, value in self._totals.items()},
            "resumed_from_step": resumed_from,
            "final": self._metrics.last,
        }


@dataclass(frozen=True, slots=True)
class _MicrobatchResult:
    """Scalars that stay on the device until the step is over."""

    loss: Tensor
    sums: dict[str, Tensor]
    maxima: dict[str, Tensor]


def _combined(results: list[_MicrobatchResult], count: int) -> dict[str, float]:
    sums = {name: torch.stack([result.sums[name] for result in results]).sum() / count for name in results[0].sums}
    maxima = {name: torch.stack([result.maxima[name] for result in results]).max() for name in results[0].maxima}
    reduced = sums | maxima
    if not reduced:
        return {}
    return dict(zip(reduced, torch.stack([value.float() for value in reduced.values()]).tolist(), strict=True))


def _ids(samples: Iterable[Sample]) -> str:
    """Prompt ids for an error message: enough to find the batch, not all of a large one."""
    ids = sorted({sample.prompt_id for sample in samples})
    more = f" and {len(ids) - _SHOWN_IDS} more" if len(ids) > _SHOWN_IDS else ""
    return ", ".join(ids[:_SHOWN_IDS]) + more
