"""The language-model head, applied only where there is a loss, a chunk of tokens at a time.

Dimensions: N loss positions, H hidden, V vocabulary. Logits of shape [chunk, V] live for the length of one chunk: when
there is more than one chunk, the backward pass computes them again instead of keeping them.
"""

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from torch.utils.checkpoint import checkpoint

MAX_CHUNK_ELEMENTS: Final = 1 << 24
"""Most logits of one chunk: 64 MiB in float32. Half of it saves no more, as the allocator then keeps freed chunks."""


@dataclass(frozen=True, slots=True)
class PredictedScores:
    """What the student says of given target tokens. Only `logprobs_N` carries a gradient."""

    logprobs_N: Tensor
    entropy_N: Tensor
    """Entropy in nats of the distribution each target was scored under."""
    is_top_N: Tensor
    """Whether the target is the most probable token."""


class Predictions:
    """The student's predictions at the loss positions of a microbatch, before the head has been applied.

    Args:
        hidden_NH: last hidden states at the positions that predict a target.
        head: the model's output layer, weight of shape [V, H].
        max_chunk_elements: bound on the size of a chunk's logits.
    """

    def __init__(self, hidden_NH: Tensor, head: nn.Linear, max_chunk_elements: int = MAX_CHUNK_ELEMENTS) -> None:
        self.hidden_NH = hidden_NH
        self.head = head
        self._chunk_size = max(1, max_chunk_elements // head.weight.shape[0])

    def score(self, targets_N: Tensor, temperature: float = 1.0) -> PredictedScores:
        """Scores of `targets_N` under softmax(logits / temperature), at least in float32."""
        num_targets = targets_N.shape[0]
        if num_targets <= self._chunk_size:
            return PredictedScores(*_score(self.hidden_NH, self.head.weight, self.head.bias, targets_N, temperature))
        chunks = [
            checkpoint(
                _score,
                self.hidden_NH[first : first + self._chunk_size],
                self.head.weight,
                self.head.bias,
                targets_N[first : first + self._chunk_size],
                temperature,
                use_reentrant=False,
                preserve_rng_state=False,
            )
            for first in range(0, num_targets, self._chunk_size)
        ]
        return PredictedScores(*(torch.cat(parts) for parts in zip(*chunks, strict=True)))


def _score(
    hidden_NH: Tensor, weight_VH: Tensor, bias_V: Tensor | None, targets_N: Tensor, temperature: float
) -> tuple[Tensor, Tensor, Tensor]:
    logits_NV = linear(hidden_NH, weight_VH, bias_V)
    logits_NV = logits_NV.to(torch.promote_types(logits_NV.dtype, torch.float32)) / temperature
    logprobs_NV = logits_NV.log_softmax(dim=-1)
    chosen_N = logprobs_NV.gather(1, targets_N[:, None]).squeeze(1)
    with torch.no_grad():
        entropy_N = -(logprobs_NV.exp() * logprobs_NV).sum(dim=-1)
        is_top_N = logprobs_NV.argmax(dim=-1) == targets_N
    return chosen_N, entropy_N, is_top_N
