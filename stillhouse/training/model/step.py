"""From a microbatch to the loss as one module, since FSDP hooks into the calls of modules; and NEFTune's noise."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from stillhouse.training.head.fused import LossSums, fused_loss
from stillhouse.training.head.scores import Reference, TokenLoss
from stillhouse.training.model.attention import hidden_before_targets
from stillhouse.training.model.microbatches import Microbatch


class StudentStep(nn.Module):
    """The student's backbone, its head and a method's loss."""

    def __init__(self, model: nn.Module, causal_lm: PreTrainedModel) -> None:
        super().__init__()
        self.model = model
        # In a tuple, so that they are not registered: they are part of `model`.
        self._parts: tuple[Any, nn.Linear] = (causal_lm.base_model, causal_lm.get_output_embeddings())
        self.noise_alpha: float | None = None
        """Size of the noise on the embeddings in training mode; None adds none."""
        self.compiles_head = False
        """Whether the head uses compiled kernels."""

    @property
    def backbone(self) -> Any:
        return self._parts[0]

    @property
    def head(self) -> nn.Linear:
        return self._parts[1]

    def forward(
        self, microbatch: Microbatch, method: TokenLoss, scale: float, reference: Reference | None = None
    ) -> LossSums:
        """Returns `scale` times the sum of the losses at the microbatch's targets, and sums of the method's metrics.

        `reference` holds the teacher's hidden states at these targets; None compares with no teacher.
        """
        alpha = self.noise_alpha
        embedding = self.backbone.get_input_embeddings()
        with nullcontext() if alpha is None else embedding_noise(embedding, alpha, microbatch):
            hidden_NH = hidden_before_targets(self.backbone, microbatch)
        return fused_loss(
            hidden_NH,
            self.head,
            microbatch.targets_N,
            microbatch.values,
            method.loss,
            scale=scale,
            temperature=method.temperature,
            wants=method.wants,
            divergence=method.divergence,
            reference=reference,
            compiled=self.compiles_head,
        )


@contextmanager
def embedding_noise(embedding: nn.Module, alpha: float, microbatch: Microbatch) -> Iterator[None]:
    """Within the block adds noise to the output of `embedding`, in training mode only (NEFTune).

    Each element gets a draw from the uniform distribution between -s and s with s = alpha / sqrt(L H), where L is the
    number of tokens of the sample that the element belongs to and H the width of the embedding (arXiv 2310.05914,
    algorithm 1; alpha is 5 to 15 there). It is drawn from torch's generator of the device, so that a resumed training
    sees the same noise.
    """

    def add_noise(module: nn.Module, inputs: Any, embedded_BTH: Tensor) -> Tensor:
        if not module.training:
            return embedded_BTH
        size_BT = alpha * (_sample_lengths(microbatch) * embedded_BTH.shape[-1]).rsqrt()
        noise_BTH = torch.empty_like(embedded_BTH).uniform_(-1.0, 1.0)
        return embedded_BTH + noise_BTH * size_BT[..., None].to(noise_BTH.dtype)

    hook = embedding.register_forward_hook(add_noise)
    try:
        yield
    finally:
        hook.remove()


def _sample_lengths(microbatch: Microbatch) -> Tensor:
    """For each position [B, T] the number of tokens of its sample, without synchronising with the device."""
    num_rows, width = microbatch.inputs_BT.shape
    if microbatch.segments is not None:
        lengths_S = microbatch.segments.starts.diff()
        return lengths_S.repeat_interleave(lengths_S, output_size=width)[None]
    # A row ends where its last target is predicted; the length of one without targets does not matter.
    rows_N, places_N = microbatch.target_places_N // width, microbatch.target_places_N % width
    lengths_B = places_N.new_ones(num_rows).scatter_reduce(0, rows_N, places_N + 1, "amax")
    return lengths_B[:, None].expand(num_rows, width)
