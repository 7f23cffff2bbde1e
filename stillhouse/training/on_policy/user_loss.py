"""A loss of the user's own: `on_policy.loss` names a function `LossInputs -> TokenLosses` of a Python file."""

from pathlib import Path

import torch

from stillhouse.errors import ConfigError, TrainingError
from stillhouse.tools.user_file import load_module
from stillhouse.training.head.scores import TokenLosses
from stillhouse.training.on_policy.algorithms.algorithm import LossInputs


class UserLoss:
    """Calls the function that `setting`, FILE.py:function, names, and checks what it returns the first time.

    Raises:
        ConfigError: the file does not load, or has no such function.
    """

    def __init__(self, setting: str) -> None:
        file, _, name = setting.rpartition(":")
        self._function = vars(load_module(Path(file), "on_policy.loss")).get(name)
        self._place, self._is_checked = f"{file}: {name}", False
        if not callable(self._function):
            raise ConfigError(f"{file}: has no function {name}, which on_policy.loss names")

    def __call__(self, inputs: LossInputs) -> TokenLosses:
        try:
            losses = self._function(inputs)  # type: ignore[misc]
        except Exception as error:
            raise TrainingError(
                f"{self._place}, the loss of on_policy.loss: {type(error).__name__}: {error}"
            ) from error
        if not self._is_checked and (problem := _problem(losses, inputs)) is not None:
            raise TrainingError(f"{self._place}, the loss of on_policy.loss, returned {problem}")
        self._is_checked = True
        return losses


def _problem(losses: object, inputs: LossInputs) -> str | None:
    if not isinstance(losses, TokenLosses):
        return f"{type(losses).__name__}; expected TokenLosses"
    shape = inputs.student_logprobs_N.shape
    for name, values_N in {"losses_N": losses.losses_N, **losses.means, **losses.maxima}.items():
        if values_N.shape != shape:
            return f"{name} of shape {list(values_N.shape)}; expected {list(shape)}, a value for each token"
        if not torch.isfinite(values_N).all():
            return f"{name} with a value that is not finite"
    return None if losses.losses_N.requires_grad else "losses_N without gradient; expected one to student_logprobs_N"
