"""Floating-point operations of a training step, and the speed of the device: the two parts of MFU.

Model FLOPs (Chowdhery et al. 2022, "PaLM", appendix B): recomputed activations and padding do not count. A product of
[n, k] with [k, m] counts 2nkm; elementwise work does not count.

Of experts those count that a token goes to. A frozen weight counts 4 and an adapter's 6 for each token, as in
prime-rl; over fused experts peft does more, since it adds the adapter to all their weights and takes the gradient of
the sum. Other figures are lower than those of prime-rl and torchtitan for the same speed: attention counts the pairs
that a causal mask leaves in each packed sample, where they count the square of the row's length, and the output layer
counts at loss positions, where they count it at every token. The peak differs too: here it is the speed of large
products as measured on the device, there by its data sheet, which no product reaches (989 TFLOP/s of an H200 in
bfloat16).

Dimensions: H hidden, V vocabulary.
"""

import logging
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, NamedTuple

import torch
from torch import nn

from stillhouse.training.model.adapter_targets import fused_experts

_logger = logging.getLogger(__name__)


class AttentionCost(NamedTuple):
    """Of one attention layer."""

    per_pair: float
    """Operations of each pair of a token and one it attends to: 12 for each of the heads' dimensions, 4 forward
    (queries with keys, weights with values) and twice that backward."""
    window: int | None
    """Tokens that each attends to at most; None is all of them."""


@dataclass(frozen=True, slots=True)
class ModelFlops:
    """Operations of a token, forward and backward."""

    per_input: float
    """Linear layers, each input token: 6 for each weight that is trained, 4 for each that is frozen, since the gradient
    passes through it but is not taken of it."""
    per_target: float
    """The head, at each loss position: 6VH, or 4VH where it is frozen."""
    attention: tuple[AttentionCost, ...]
    """One for each attention layer; none for state-space models, whose scans are elementwise."""

    def of_step(self, lengths: Iterable[int], num_targets: int) -> float:
        """Return the operations of a step over sequences of these lengths in input tokens."""
        attending, num_inputs = 0.0, 0
        for length in lengths:
            num_inputs += length
            attending += sum(layer.per_pair * _pairs(length, layer.window) for layer in self.attention)
        return self.per_input * num_inputs + self.per_target * num_targets + attending


def model_flops(backbone: nn.Module, head: nn.Linear, config: Any) -> ModelFlops:
    """Return the costs of a student; `config` is of the text model, `backbone` that below its head with adapters."""
    return ModelFlops(
        per_input=sum(size * (6.0 if is_trained else 4.0) for size, is_trained in _matrices(backbone, config)),
        per_target=head.in_features * head.out_features * (6.0 if head.weight.requires_grad else 4.0),
        attention=tuple(_attention(config)),
    )


def known_flops(backbone: nn.Module, head: nn.Linear, config: Any) -> ModelFlops | None:
    """Return `model_flops`; None where a family names its sizes otherwise, since a figure ends no training."""
    try:
        return model_flops(backbone, head, config)
    except (AttributeError, LookupError, TypeError) as error:
        _logger.warning("mfu is not measured: the operations of %s are unknown: %s", type(config).__name__, error)
        return None


def _matrices(backbone: nn.Module, config: Any) -> Iterator[tuple[float, bool]]:
    """Yield the number of weights each token is multiplied with, and whether they are trained."""
    shares = _shares_of_experts(backbone, config)
    for module in backbone.modules():
        if isinstance(module, nn.Embedding):
            continue
        share = shares.get(id(module))
        for weight in module.parameters(recurse=False):
            if isinstance(module, nn.Linear) and weight.ndim == 2:
                # Not the weight's own size: 4-bit weights are stored in another shape.
                yield module.in_features * module.out_features * (share or 1.0), weight.requires_grad
            elif weight.ndim > (1 if share is None else 2):
                yield weight.numel() * (share or 1.0), weight.requires_grad


def _shares_of_experts(backbone: Any, config: Any) -> dict[int, float]:
    """Return the share of the weights that a token is multiplied with, by the id of each module of experts or adapter.

    Matrices of experts have three dimensions; those of two are their biases.
    """
    shares: dict[int, float] = {}
    for path in dict.fromkeys(name.rpartition(".")[0] for name in fused_experts(backbone)):
        experts = backbone.get_submodule(path)
        num_experts = next(weight.shape[0] for weight in experts.parameters() if weight.ndim == 3)
        shares |= dict.fromkeys(map(id, experts.modules()), config.num_experts_per_tok / num_experts)
    return shares


def _attention(config: Any) -> Iterator[AttentionCost]:
    kinds = getattr(config, "layer_types", None)
    if kinds is None:
        window = getattr(config, "sliding_window", None)
        kinds = ["full_attention" if window is None else "sliding_attention"] * config.num_hidden_layers
    for number, kind in enumerate(kinds):
        if kind in ("full_attention", "sliding_attention"):
            # Layers of Gemma 4 differ in their head dimension.
            layer = config.per_layer_config[number]
            num_heads = layer.num_attention_heads
            head_dim = getattr(layer, "head_dim", None) or layer.hidden_size // num_heads
            yield AttentionCost(12.0 * num_heads * head_dim, layer.sliding_window if kind[0] == "s" else None)


def _pairs(length: int, window: int | None) -> int:
    """Return the number of pairs of a token and one at or before it, at most `window` of them."""
    reach = length if window is None else min(window, length)
    return reach * (reach + 1) // 2 + (length - reach) * reach


_SIZES: Final = {"cuda": 8192, "cpu": 1024}
_BUDGET_S: Final = {"cuda": 0.3, "cpu": 0.1}


@cache
def measure_peak_flops(device: torch.device, dtype: torch.dtype) -> float:
    """Return the operations a second of the best of a few large square products in `dtype`, measured once in a process.

    Leaves the process's random generators alone. The factors are random, since a GPU multiplies constants faster.
    """
    size = _SIZES.get(device.type, 1024)
    generator = torch.Generator(device).manual_seed(0)
    left, right = (torch.randn(size, size, device=device, dtype=dtype, generator=generator) for _ in range(2))
    product = left @ right
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    best, ends = float("inf"), time.perf_counter() + _BUDGET_S.get(device.type, 0.3)
    # Repeated, since an idle GPU takes some time to reach its clock rate.
    while (started := time.perf_counter()) < ends or best == float("inf"):
        torch.matmul(left, right, out=product)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        best = min(best, time.perf_counter() - started)
    return 2.0 * size**3 / best
