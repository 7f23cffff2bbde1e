"""The trained weights: gradient clipping, the optimiser, and a running mean of the weights (EMA)."""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim.swa_utils import get_ema_multi_avg_fn

from stillhouse.config import TrainerConfig
from stillhouse.errors import ConfigError
from stillhouse.training.loop.optimizer import build_optimizer
from stillhouse.training.model.student import Student
from stillhouse.training.ranks import Ranks
from stillhouse.training.sharding import full_tensors, load_full_optimizer_state, load_full_tensors


class Weights:
    """The trained parameters of a student, changed in place and sharded where there are several ranks."""

    def __init__(self, student: Student, config: TrainerConfig, ranks: Ranks) -> None:
        self._ranks = ranks
        if ranks.size > 1 and config.optimizer != "adamw":
            raise ConfigError(
                f"optimizer = {config.optimizer!r} needs whole matrices, which {ranks.size} processes share between "
                "them; expected `adamw`. Set it, or train in one process"
            )
        self._parameters = dict(student.trained_parameters())
        self._max_norm = config.max_grad_norm
        self._optimizer = build_optimizer(student, config)
        self._average = None if config.ema_decay is None else WeightAverage(self._parameters, config.ema_decay)

    def clip(self) -> float:
        """Clip the gradients to the largest norm allowed; return their norm before that."""
        norm = nn.utils.clip_grad_norm_(self._parameters.values(), self._max_norm)
        return (norm.full_tensor() if isinstance(norm, DTensor) else norm).item()

    def update(self, learning_rate: float) -> None:
        """Take a step of the optimiser and clear the gradients."""
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate
        self._optimizer.step()
        self._optimizer.zero_grad()
        if self._average is not None:
            self._average.update()

    def averaged(self) -> AbstractContextManager[None]:
        """Use the running mean, where one is kept, as the student's weights within the block."""
        return nullcontext() if self._average is None else self._average.swapped()

    def state(self) -> dict[str, Any]:
        """Return the arguments for `load`, in the first rank: unsharded tensors on the CPU; collective."""
        return {
            "weights": full_tensors(self._parameters, self._ranks),
            "optimizer": full_tensors(self._optimizer.state_dict(), self._ranks),
            "average": None if self._average is None else full_tensors(self._average.state(), self._ranks),
        }

    def load(
        self, weights: Mapping[str, Tensor], optimizer: Mapping[str, Any], average: Mapping[str, Tensor] | None
    ) -> None:
        self.replace(weights)
        load_full_optimizer_state(self._optimizer, optimizer)
        if self._average is not None and average is not None:
            self._average.load(average)

    def replace(self, weights: Mapping[str, Tensor]) -> None:
        """Copy unsharded `weights` into the parameters."""
        load_full_tensors(self._parameters, weights)


class WeightAverage:
    """The mean of the weights after each step, where a step t steps ago counts decay^t.

    After n steps the mean is (1 - decay) / (1 - decay^n) * sum_t decay^t w_{n-t}: the running mean of Adam with its
    correction of the start (arXiv 1412.6980, section 3), in the form avg_n = d_n avg_{n-1} + (1 - d_n) w_n with
    d_n = decay (1 - decay^{n-1}) / (1 - decay^n). So the weights before the first step have no part in it, and a short
    training has a mean over its own steps.
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter], decay: float) -> None:
        self._parameters = dict(parameters)
        self.weights = {name: p.detach().clone() for name, p in self._parameters.items()}
        """By parameter name."""
        self._decay = decay
        self._num_updates = 0

    @contextmanager
    def swapped(self) -> Iterator[None]:
        """Exchange the weights of the mean and the model within the block; do not train meanwhile."""
        self._exchange()
        try:
            yield
        finally:
            self._exchange()

    @torch.no_grad()
    def update(self) -> None:
        """Add the weights after one more step to the mean."""
        self._num_updates += 1
        before, now = (1.0 - self._decay**n for n in (self._num_updates - 1, self._num_updates))
        mix = get_ema_multi_avg_fn(self._decay * before / now)
        mix(list(self.weights.values()), list(self._parameters.values()), self._num_updates)

    def state(self) -> dict[str, Tensor]:
        """Return the means by parameter name, and the number of steps in them as `num_updates`."""
        return {**self.weights, "num_updates": torch.tensor(self._num_updates)}

    @torch.no_grad()
    def load(self, state: Mapping[str, Tensor]) -> None:
        """Copy what `state` gave, unsharded."""
        load_full_tensors(self.weights, state)
        self._num_updates = int(state["num_updates"])

    @torch.no_grad()
    def _exchange(self) -> None:
        for name, other in self.weights.items():
            parameter = self._parameters[name]
            weights = parameter.clone()
            parameter.copy_(other)
            other.copy_(weights)
