"""What is trained and what moves it: clipping, the optimiser, a running mean of the weights."""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from stillhouse.config import TrainerConfig
from stillhouse.training.optimisation.ema import WeightAverage
from stillhouse.training.optimisation.optimizer import build_optimizer
from stillhouse.training.student.student import Student


class WeightsState(NamedTuple):
    """Whole tensors on the CPU."""

    weights: dict[str, Tensor]
    optimizer: dict[str, Any]
    average: dict[str, Tensor] | None
    """None where no running mean is kept."""


class Weights:
    """The trained parameters of a student.

    Args:
        student: whose parameters are changed in place.
        config: optimiser, clipping, running mean.

    Raises:
        ConfigError: the optimiser cannot be had here, or is none for an adapter.
    """

    def __init__(self, student: Student, config: TrainerConfig) -> None:
        self._parameters = dict(student.trained_parameters())
        self._max_norm = config.max_grad_norm
        self._optimizer = build_optimizer(student, config)
        self._average = None if config.ema_decay is None else WeightAverage(self._parameters, config.ema_decay)

    def clip(self) -> float:
        """Scales the gradients down to the largest norm allowed; their norm before that."""
        return nn.utils.clip_grad_norm_(self._parameters.values(), self._max_norm).item()

    def update(self, learning_rate: float) -> None:
        """One step of the optimiser, which uses the gradients up."""
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate
        self._optimizer.step()
        self._optimizer.zero_grad()
        if self._average is not None:
            self._average.update()

    def averaged(self) -> AbstractContextManager[None]:
        """Within the block the student has the running mean for its weights, where one is kept."""
        return nullcontext() if self._average is None else self._average.swapped()

    def state(self) -> WeightsState:
        """What `load` needs."""
        return WeightsState(
            {name: p.detach().cpu().contiguous() for name, p in self._parameters.items()},
            self._optimizer.state_dict(),
            None if self._average is None else self._average.state(),
        )

    def load(self, state: WeightsState) -> None:
        """Continues from a `state`."""
        self.replace(state.weights)
        self._optimizer.load_state_dict(state.optimizer)
        if self._average is not None and state.average is not None:
            self._average.load(state.average)

    @torch.no_grad()
    def replace(self, weights: Mapping[str, Tensor]) -> None:
        """Puts `weights` in the parameters' place."""
        for name, parameter in self._parameters.items():
            parameter.copy_(weights[name])
