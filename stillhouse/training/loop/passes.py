"""Forward and backward passes of a batch: microbatch by microbatch, each rank its share.

The loss is the sum over the loss positions of the whole batch divided by their number, so that neither the split into
microbatches, nor packing, nor the number of ranks changes it.
"""

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import reduce
from typing import Any, Final

import torch
from torch import Tensor

from stillhouse.config import TrainerConfig
from stillhouse.errors import TrainingError
from stillhouse.training.head.fused import LossSums
from stillhouse.training.head.scores import TokenLoss
from stillhouse.training.loop.stopping import named_prompts
from stillhouse.training.model.microbatches import collate, idle_microbatch, microbatch_groups, num_targets
from stillhouse.training.model.student import Student
from stillhouse.training.monitoring.metrics import Ratio
from stillhouse.training.ranks import Ranks
from stillhouse.types import Sample

_MEASURED_AT_ONCE: Final = 512
"""Samples: enough to fill the microbatches of many ranks, small compared with a model."""


@dataclass(frozen=True, slots=True)
class PassResult:
    loss: float
    """Mean over the loss positions of the batch."""
    ratios: dict[str, Ratio]
    """The method's means and ratios, by bare name, as are its maxima."""
    maxima: dict[str, float]
    num_targets: int
    """Loss positions of the batch."""
    groups: Sequence[Sequence[Sample]]
    """The microbatches of all ranks."""
    suspects: Sequence[Sample]
    """Samples of this rank's microbatches whose loss is not finite."""

    @property
    def metrics(self) -> dict[str, float]:
        """Return the loss and all other metrics; ratios with denominator 0 are left out."""
        quotients = {name: top / bottom for name, (top, bottom) in self.ratios.items() if bottom}
        return {"loss": self.loss, **quotients, **self.maxima}


class Passes:
    """Takes batches through `student`, each of the `ranks` its share."""

    def __init__(self, student: Student, ranks: Ranks, config: TrainerConfig) -> None:
        self._student = student
        self._ranks = ranks
        self._max_tokens = config.microbatch_tokens
        self.packing = config.packing and student.packs_exactly()
        self.compiling: Callable[[], AbstractContextManager[Any]] = nullcontext
        """Settings of the compiler, where a pass is compiled."""

    def backward(self, samples: Sequence[Sample], method: TokenLoss) -> PassResult:
        """Add the gradient of the mean loss to the trained parameters."""
        self._student.model.train(method.uses_dropout)
        return self._run(samples, method, is_training=True)

    @torch.no_grad()
    def measure(self, samples: Sequence[Sample], method: TokenLoss) -> dict[str, float]:
        """Return `PassResult.metrics` without gradient or dropout; few samples at a time are in memory."""
        self._student.model.eval()
        starts = range(0, max(1, len(samples)), _MEASURED_AT_ONCE)
        parts = (samples[start : start + _MEASURED_AT_ONCE] for start in starts)
        return reduce(_combined, (self._run(part, method, is_training=False) for part in parts)).metrics

    def _run(self, samples: Sequence[Sample], method: TokenLoss, *, is_training: bool) -> PassResult:
        count = num_targets(samples)
        if count == 0:
            raise TrainingError(
                f"the batch has no token to train on; prompts {named_prompts(samples)}. Check that prompts leave room "
                "for a completion in the model's context"
            )
        groups = microbatch_groups(samples, self._max_tokens, packing=self.packing, partition=method.partition)
        local_groups = self._ranks.local_microbatches(groups)
        results = []
        for group in local_groups:
            if group:
                microbatch = collate(group, method.token_values, self._student.device, packing=self.packing)
            else:
                # A rank without work still takes part in collective operations.
                names = method.token_values(samples[0])
                microbatch = idle_microbatch(names, self._student.device, packing=self.packing)
            with torch.no_grad(), self._student.precision():
                reference = method.reference(group)
            with self.compiling():
                with self._student.precision():
                    sums = self._student.step(microbatch, method, 1.0 / count, reference)
                if is_training:
                    sums.loss.backward()
            results.append(sums)
        losses, sums, maxima = _on_host(results)
        sums, maxima = self._ranks.sum_and_max(sums, maxima)
        ratios = {name: (sums[f"{name} over"], sums[f"{name} under"]) for name in results[0].ratios}
        means = {name: (sums[name], float(count)) for name in results[0].sums}
        suspects = [
            sample
            for group, loss in zip(local_groups, losses, strict=True)
            if not math.isfinite(loss)
            for sample in group
        ]
        return PassResult(sums["loss"], means | ratios, maxima, count, groups, suspects)


def _combined(first: PassResult, second: PassResult) -> PassResult:
    """Return the result of a pass over the batches of both, without their samples."""
    count = first.num_targets + second.num_targets
    return PassResult(
        loss=(first.loss * first.num_targets + second.loss * second.num_targets) / count,
        ratios={
            name: (top + second.ratios[name][0], bottom + second.ratios[name][1])
            for name, (top, bottom) in first.ratios.items()
        },
        maxima={name: max(value, second.maxima[name]) for name, value in first.maxima.items()},
        num_targets=count,
        groups=(),
        suspects=(),
    )


def _on_host(results: Sequence[LossSums]) -> tuple[list[float], dict[str, float], dict[str, float]]:
    """Return the loss of each microbatch, and sums and maxima by name, fetched from the device at once."""
    first = results[0]
    losses = [result.loss.detach() for result in results]
    named: dict[str, Tensor] = {name: torch.stack([r.sums[name] for r in results]).sum() for name in first.sums}
    for name in first.ratios:
        over, under = torch.stack([result.ratios[name] for result in results]).sum(dim=0)
        named |= {f"{name} over": over, f"{name} under": under}
    maxima = {name: torch.stack([result.maxima[name] for result in results]).max() for name in first.maxima}
    fetched = [*losses, *named.values(), *maxima.values()]
    values = torch.stack([value.double() for value in fetched]).tolist()
    loss_values, sum_values = values[: len(losses)], values[len(losses) : len(losses) + len(named)]
    return (
        loss_values,
        {"loss": sum(loss_values), **dict(zip(named, sum_values, strict=True))},
        dict(zip(maxima, values[len(losses) + len(named) :], strict=True)),
    )
