"""From a microbatch to the loss, as one module: what shards weights over devices hooks into modules' calls."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from stillhouse.training.head.fused import LossSums, fused_loss
from stillhouse.training.head.reference import Reference
from stillhouse.training.loop.batching.microbatches import Microbatch
from stillhouse.training.loop.method import TokenLoss
from stillhouse.training.model.attention import hidden_before_targets
from stillhouse.training.model.neftune import embedding_noise


class StudentStep(nn.Module):
    """The student's backbone, its head and a method's loss.

    Args:
        model: the module that holds all weights: the causal language model, or peft's wrapper of it.
        causal_lm: the causal language model in it.

    Raises:
        TrainingError: the output layer is no linear layer.
    """

    def __init__(self, model: nn.Module, causal_lm: PreTrainedModel) -> None:
        super().__init__()
        self.model = model
        # Not registered: they are part of `model`, and weights are to be found once.
        self._parts: tuple[Any, nn.Linear] = (causal_lm.base_model, causal_lm.get_output_embeddings())
        self.noise_alpha: float | None = None
        """Size of the noise on the embeddings in training mode; None adds none."""
        self.compiles_head = False
        """Whether the passes over the logits are made by compiled kernels."""

    @property
    def backbone(self) -> Any:
        """What turns token ids into hidden states."""
        return self._parts[0]

    @property
    def head(self) -> nn.Linear:
        """The output layer."""
        return self._parts[1]

    def forward(
        self, microbatch: Microbatch, method: TokenLoss, scale: float, reference: Reference | None = None
    ) -> LossSums:
        """`scale` times the sum of the losses at the microbatch's targets, and sums of what the method reports.

        `reference` is the teacher that the student is compared with at these targets; None compares with nobody.
        """
        with self._noise(microbatch):
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

    def _noise(self, microbatch: Microbatch) -> AbstractContextManager[None]:
        if self.noise_alpha is None:
            return nullcontext()
        return embedding_noise(self.backbone.get_input_embeddings(), self.noise_alpha, microbatch)
