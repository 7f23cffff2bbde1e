"""The best validation so far, and how long ago it was."""

import math

from stillhouse.types import JsonObject


class BestValidation:
    """Remembers the step of the lowest validation loss; of equal ones the first.

    Args:
        patience: validations in a row without a lower loss after which training is to end; None never ends it.
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
        """Whether patience has run out."""
        return self._patience is not None and self._num_worse >= self._patience

    def observe(self, step: int, loss: float) -> bool:
        """Takes in the validation after `step` steps; whether it is the best so far. NaN never is."""
        if not loss < (math.inf if self.loss is None else self.loss):
            self._num_worse += 1
            return False
        self.step, self.loss, self._num_worse = step, loss, 0
        return True

    def state(self) -> JsonObject:
        """What `restore` needs."""
        return {"step": self.step, "loss": self.loss, "num_worse": self._num_worse}

    def restore(self, state: JsonObject) -> None:
        """Returns to how things stood when `state()` was called."""
        self.step, self.loss, self._num_worse = state["step"], state["loss"], state["num_worse"]
