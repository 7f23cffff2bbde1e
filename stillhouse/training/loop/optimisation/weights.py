"""What is trained and what moves it: clipping, the optimiser, a running mean of the weights."""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from stillhouse.config import TrainerConfig
from stillhouse.errors import ConfigError
from stillhouse.training.loop.optimisation.ema import WeightAverage
from stillhouse.training.loop.optimisation.optimizer import build_optimizer
from stillhouse.training.loop.parallel.ranks import Ranks
from stillhouse.training.loop.parallel.whole import load_whole, load_whole_optimizer, whole
from stillhouse.training.model.student import Student


class WeightsState(NamedTuple):
    """Whole tensors on the CPU."""

    weights: dict[str, Tensor]
    optimizer: dict[str, Any]
    average: dict[str, Tensor] | None
    """None where no running mean is kept."""


class Weights:
    """The trained parameters of a student.

    Args:
        student: whose parameters are changed in place; sharded where there are several ranks.
        ranks: who trains together.
        config: optimiser, clipping, running mean.

    Raises:
        ConfigError: the optimiser cannot be had here, or is none for an adapter or for several ranks.
    """

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
        """Scales the gradients down to the largest norm allowed; their norm before that."""
        norm = nn.utils.clip_grad_norm_(self._parameters.values(), self._max_norm)
        return (norm.full_tensor() if isinstance(norm, DTensor) else norm).item()

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
        """What `load` needs, in the first rank; collective."""
        return WeightsState(
            whole(self._parameters, self._ranks),
            whole(self._optimizer.state_dict(), self._ranks),
            None if self._average is None else whole(self._average.state(), self._ranks),
        )

    def load(self, state: WeightsState) -> None:
        """Continues from a `state`."""
        self.replace(state.weights)
        load_whole_optimizer(self._optimizer, state.optimizer)
        if self._average is not None and state.average is not None:
            self._average.load(state.average)

    def replace(self, weights: Mapping[str, Tensor]) -> None:
        """Puts `weights`, which are whole, in the parameters' place."""
        load_whole(self._parameters, weights)
