"""An output layer whose logits are float32 where the rest of the model computes in bfloat16."""

import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from transformers import PreTrainedModel

from stillhouse.training.head.softmax import wide


class Float32Linear(nn.Linear):
    """A linear layer whose products are float32, whatever the type of input, weight and autocast.

    MiniMax-M1 (arXiv 2506.13585, section 3.2) found bfloat16 logits to be the main difference between the
    log-probabilities of sampling and of training.
    """

    def forward(self, input: Tensor) -> Tensor:
        """The float32 output, or that of float64 for float64 input."""
        dtype = wide(input.dtype)
        with torch.autocast(input.device.type, enabled=False):
            return linear(input.to(dtype), self.weight.to(dtype), None if self.bias is None else self.bias.to(dtype))


def cast_head_to_float32(causal_lm: PreTrainedModel) -> None:
    """Replaces the output layer by one with float32 products of the same parameters, which keep their type."""
    head = causal_lm.get_output_embeddings()
    layer = Float32Linear(head.in_features, head.out_features, bias=head.bias is not None, device="meta")
    layer.weight, layer.bias = head.weight, head.bias
    causal_lm.set_output_embeddings(layer)
