"""The training loop, whatever the method: passes, update, measurements, checkpoints."""

import logging
import math
import time
from dataclasses import dataclass
from pathlib import Path

from stillhouse.config import TrainerConfig
from stillhouse.errors import ConfigError, TrainingError
from stillhouse.training.interruption import Interrupted, InterruptOnSigterm
from stillhouse.training.loop.checkpoint import Checkpoint, load_newest_checkpoint, load_weights, save_checkpoint
from stillhouse.training.loop.method import Batch, Method
from stillhouse.training.loop.optimizer import learning_rate
from stillhouse.training.loop.passes import Passes, PassResult
from stillhouse.training.loop.stopping import named_prompts
from stillhouse.training.loop.watch import Watch
from stillhouse.training.loop.weights import Weights
from stillhouse.training.monitoring.generations import Generations
from stillhouse.training.ranks import Ranks
from stillhouse.training.repeatability import random_state, restore_random_state_of_rank
from stillhouse.types import JsonObject

logger = logging.getLogger(__name__)


@dataclass
class Trainer:
    """Trains a student by `method` for `method.num_steps` steps, from the newest checkpoint if there is one.

    `build_trainer` makes one and describes the fields.
    """

    method: Method
    passes: Passes
    weights: Weights
    watch: Watch
    config: TrainerConfig
    peak_rate: float
    ranks: Ranks
    checkpoints: Path
    identity: JsonObject
    tracking_run_id: str | None
    generations: Generations | None

    def __post_init__(self) -> None:
        method, config = self.method, self.config
        if not method.validation and (config.keep == "best" or config.early_stopping_patience is not None):
            raise ConfigError(
                f"{method.name}.trainer: keep = {config.keep!r}, early_stopping_patience = "
                f"{config.early_stopping_patience}: both go by the validation loss, and {method.name} has no rows to "
                "validate with here. Keep some, or use `last` and no patience"
            )
        self._step = 0
        self._random = random_state()
        self._totals: dict[str, float] = {"seconds": 0.0, "trained_tokens": 0, "sampled_tokens": 0}

    def run(self) -> JsonObject:
        """Train to the end; return facts of the training, including its earlier attempts.

        Afterwards the student has the weights that `config.keep` asks for; save them within `weights.averaged()`.

        Raises:
            TrainingError: a loss or gradient is not finite, training has diverged, an alarm asks to stop, or the
                checkpoint found belongs to another training.
            StoreError: a checkpoint cannot be written.
            Interrupted: SIGTERM; a checkpoint was saved.
        """
        resumed_from = self._resume()
        num_steps = self.method.num_steps
        logger.info("%s: %d of %d steps are done", self.method.name, self._step, num_steps)
        self.watch.show(self._step)
        with InterruptOnSigterm(self.ranks) as interruption:
            if resumed_from is None and (measured := self._measure(validate=True)):
                self.watch.write_row(0, measured)
            while self._step < num_steps and not self.watch.best.is_exhausted:
                try:
                    self._train_one_step(interruption)
                except Interrupted:
                    # A step is interrupted before it changes the weights, or after it is complete: they are those
                    # after `self._step` steps, and `self._random` belongs to them.
                    self._save()
                    raise
        self._keep_best()
        return self._facts(resumed_from)

    def _train_one_step(self, interruption: InterruptOnSigterm) -> None:
        started = time.monotonic()
        self.watch.throughput.begin_step(self._step)
        batch = self.method.batch(self._step)
        self.watch.throughput.batch_ready()
        result = self.passes.backward(batch.samples, self.method)
        norm = self.weights.clip()
        self._refuse_not_finite(batch, result, norm)
        with interruption.deferred():
            # Not before: an interrupted step is checked again.
            self.watch.divergence.observe(self._step, result.metrics, batch.samples)
            rate = learning_rate(self.peak_rate, self.config, self._step, self.method.num_steps)
            self.weights.update(rate)
            self._step += 1
            self.watch.add(batch, result, {"grad_norm": norm, "learning_rate": rate})
            self._totals["seconds"] += time.monotonic() - started
            self._totals["trained_tokens"] += result.num_targets
            self._totals["sampled_tokens"] += batch.num_sampled_tokens
            self._close_step()
        interruption.raise_if_any()

    def _close_step(self) -> None:
        is_checkpoint = self._is_due(self.config.checkpoint_every_steps)
        is_validation = self._is_due(self.config.validate_every_steps or self.config.checkpoint_every_steps)
        reason_to_stop = self.watch.alarms.reason_to_stop if self._step < self.method.num_steps else None
        measured = self._measure(validate=is_validation)
        if measured or is_checkpoint or reason_to_stop or self._is_due(self.config.log_every_steps):
            self.watch.write_row(self._step, measured)
        # A suspicious step gets no checkpoint, so it cannot be the best.
        loss = measured.get(f"validation_{self.method.guarded or 'loss'}")
        is_best = (
            loss is not None and not self.watch.divergence.is_suspicious and self.watch.best.observe(self._step, loss)
        )
        self._random = random_state()
        if is_checkpoint or reason_to_stop or (is_best and self.config.keep == "best"):
            self._save()
        self.watch.show(self._step)
        if reason_to_stop:
            raise TrainingError(
                f"{self.method.name}, step {self._step}: {reason_to_stop}. The weights are in {self.checkpoints}"
            )

    def _is_due(self, every_steps: int) -> bool:
        return self._step % every_steps == 0 or self._step == self.method.num_steps

    def _measure(self, *, validate: bool) -> dict[str, float]:
        """Measure the weights as they would be saved now; return metrics by bare name."""
        metrics: dict[str, float] = {}
        with self.weights.averaged():
            if validate and self.method.validation:
                self.watch.say(self._step, "validating")
                figures = self.passes.measure(self.method.validation, self.method)
                metrics |= {f"validation_{name}": value for name, value in figures.items()}
            if self.generations is not None and self._is_due(self.generations.every_steps):
                self.watch.say(self._step, "sampling answers")
                metrics |= self.generations.measure(self._step)
        return metrics

    def _refuse_not_finite(self, batch: Batch, result: PassResult, norm: float) -> None:
        if math.isfinite(result.loss) and math.isfinite(norm):
            return
        suspects = [sample for rank in self.ranks.gather(result.suspects) for sample in rank]
        raise TrainingError(
            f"{self.method.name}, step {self._step}: loss {result.loss}, gradient norm {norm}; expected finite "
            f"values; prompts {named_prompts(suspects or batch.samples)}. Checkpoints in {self.checkpoints} are from "
            f"before. Lower {self.method.name}.learning_rate, or set student.dtype to float32 where it is bfloat16",
            code="not-finite",
        )

    def _resume(self) -> int | None:
        checkpoint = load_newest_checkpoint(self.checkpoints, self.identity)
        watch, step, replay = None, -1, False
        if checkpoint is not None:
            self.weights.load(checkpoint.weights, checkpoint.optimizer, checkpoint.average)
            restore_random_state_of_rank(checkpoint.random, self.ranks.rank)
            self._random = random_state()
            self._step = step = checkpoint.step
            self._totals = dict(checkpoint.progress["totals"])
            watch = checkpoint.progress["watch"]
            replay = checkpoint.progress["tracking_run_id"] != self.tracking_run_id
        self.watch.restore(watch, step, replay=replay)
        if self.generations is not None:
            self.generations.restore(step, replay=replay)
        return None if checkpoint is None else step

    def _save(self) -> None:
        if self.watch.divergence.is_suspicious:
            logger.warning("step %d: no checkpoint is made of a loss that high", self._step)
            return
        self.watch.say(self._step, "saving")
        totals, watch = self._totals, self.watch.state()
        checkpoint = Checkpoint(
            step=self._step,
            **self.weights.state(),
            random=self.ranks.gather(self._random),
            identity=self.identity,
            progress={"totals": totals, "watch": watch, "tracking_run_id": self.tracking_run_id},
        )
        if self.ranks.is_first:
            best_step = self.watch.best.step if self.config.keep == "best" else None
            path = save_checkpoint(self.checkpoints, checkpoint, best_step=best_step)
            logger.info("saved %s", path)
        self.watch.checkpoint = self._step
        self.ranks.barrier()

    def _keep_best(self) -> None:
        best = self.watch.best.step
        if self.config.keep == "best" and best is not None and best != self._step:
            with self.weights.averaged():
                self.weights.replace(load_weights(self.checkpoints, best))
            logger.info("%s: kept are the weights after step %d, of the best validation", self.method.name, best)

    def _facts(self, resumed_from: int | None) -> JsonObject:
        best = {"best_step": self.watch.best.step} if self.config.keep == "best" else {}
        return {
            "steps": self._step,
            "num_processes": self.ranks.size,
            **{name: round(value, 3) if name == "seconds" else int(value) for name, value in self._totals.items()},
            "resumed_from_step": resumed_from,
            **best,
            **self.method.facts,
            "final": self.watch.metrics.last,
        }
