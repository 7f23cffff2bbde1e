"""Hidden states of a teacher that each of `on_policy.num_passes` over a batch of rollouts compares with."""

from array import array
from collections.abc import Callable, Sequence
from typing import Final

from torch import Tensor

from stillhouse.training.on_policy.scored import TeacherView

MAX_BYTES: Final = 4 << 30
"""Hidden states of one teacher that are kept at most: half a million tokens of 4,096 numbers in half precision."""


class HiddenCache:
    """Keeps in host memory what a frozen teacher computed for the microbatches of one batch.

    A forward pass of a teacher of 8B parameters takes 16 GFLOP a token, and its hidden states are 8 KiB. A microbatch
    that no longer fits is computed each time.
    """

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._kept: dict[tuple[bytes, ...], Tensor] = {}

    def get(self, views: Sequence[TeacherView], compute: Callable[[], Tensor]) -> Tensor:
        """Return the result of `compute`, or on the CPU the earlier one for the same views in this order."""
        key = tuple(part for view in views for part in (array("q", view.token_ids).tobytes(), bytes(view.loss_mask)))
        kept = self._kept.get(key)
        if kept is not None:
            return kept
        hidden_NR = compute()
        if self._num_bytes + hidden_NR.nbytes <= self._max_bytes:
            self._num_bytes += hidden_NR.nbytes
            self._kept[key] = hidden_NR.cpu()
        return hidden_NR

    def clear(self) -> None:
        """Forget everything, as for the next batch."""
        self._kept.clear()
        self._num_bytes = 0
