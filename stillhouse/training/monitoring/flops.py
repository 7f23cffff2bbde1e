"""Floating-point operations of a training step, and the speed of the device: the two parts of MFU.

Model FLOPs (Chowdhery et al. 2022, "PaLM", appendix B): recomputed activations and padding do not count. A product of
[n, k] with [k, m] counts 2nkm; elementwise work does not count.

Of experts those count that a token goes to. A frozen weight counts 4 and an adapter's 6 for each token, as in
prime-rl; over fused experts peft does more, since it adds the adapter to all their weights and takes the gradient of
the sum. Other figures are lower than those of prime-rl and torchtitan for the same speed: attention counts the pairs
that a causal mask leaves in each packed sample, where they count the square of the row's length, and the output layer
counts at loss positions, where they count it at every token. The peak differs too: here it is the speed of large
products as measured on the device, there that of its data sheet, which no product reaches (989 TFLOP/s of an H200 in
bfloat16).

Dimensions: H hidden, V vocabulary.
"""

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import torch
from torch import nn

from stillhouse.training.model.adapter_targets import fused_experts


@dataclass(frozen=True, slots=True)
class ModelFlops:
    """Operations of a token, forward and backward."""

    per_input: float
    """Linear layers, each input token: 6 for each weight that is trained, 4 for each that is frozen, since the gradient
    passes through it but is not taken of it."""
    per_target: float
    """The head, at each loss position: 6VH, or 4VH where it is frozen."""
    per_pair: float
    """Attention of one layer, each pair of a token and one it attends to: 12 for each of the heads' dimensions, 4
    forward (queries with keys, weights with values) and twice that backward. 0 without attention (state-space models,
    whose scans are elementwise)."""
    windows: tuple[int | None, ...]
    """For each attention layer the tokens it attends to at most; None is all of them."""

    def of_step(self, lengths: Iterable[int], num_targets: int) -> float:
        """Operations of a step over sequences of these lengths in input tokens."""
        pairs = num_inputs = 0
        for length in lengths:
            num_inputs += length
            pairs += sum(_pairs(length, window) for window in self.windows)
        return self.per_input * num_inputs + self.per_target * num_targets + self.per_pair * pairs


def model_flops(backbone: nn.Module, head: nn.Linear, config: Any) -> ModelFlops:
    """Costs of a student.

    Args:
        backbone: the model below its head, adapters included.
        head: the output layer.
        config: the transformers config of the text model.
    """
    num_heads = getattr(config, "num_attention_heads", 0)
    # A state-space model's config may have a `head_dim` all the same.
    head_dim = (getattr(config, "head_dim", None) or config.hidden_size // num_heads) if num_heads else 0
    return ModelFlops(
        per_input=sum(size * (6.0 if is_trained else 4.0) for size, is_trained in _matrices(backbone, config)),
        per_target=head.in_features * head.out_features * (6.0 if head.weight.requires_grad else 4.0),
        per_pair=12.0 * num_heads * head_dim,
        windows=tuple(_windows(config)),
    )


def _matrices(backbone: nn.Module, config: Any) -> Iterator[tuple[float, bool]]:
    """Yields the number of weights each token is multiplied with, and whether they are trained."""
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
    """The share of the weights that a token is multiplied with, by the id of each module of experts or their adapter.

    Matrices of experts have three dimensions; those of two are their biases.
    """
    shares: dict[int, float] = {}
    for path in dict.fromkeys(name.rpartition(".")[0] for name in fused_experts(backbone)):
        experts = backbone.get_submodule(path)
        num_experts = next(weight.shape[0] for weight in experts.parameters() if weight.ndim == 3)
        shares |= dict.fromkeys(map(id, experts.modules()), config.num_experts_per_tok / num_experts)
    return shares


def _windows(config: Any) -> Iterator[int | None]:
    kinds = getattr(config, "layer_types", None)
    window = getattr(config, "sliding_window", None)
    if kinds is None:
        kinds = ["full_attention" if window is None else "sliding_attention"] * config.num_hidden_layers
    for kind in kinds:
        if kind == "full_attention":
            yield None
        elif kind == "sliding_attention":
            yield window


def _pairs(length: int, window: int | None) -> int:
    """Pairs of a token and one at or before it, at most `window` of them."""
    reach = length if window is None else min(window, length)
    return reach * (reach + 1) // 2 + (length - reach) * reach


_SIZES: Final = {"cuda": 8192, "cpu": 1024}
_BUDGET_S: Final = {"cuda": 0.3, "cpu": 0.1}


@cache
def measure_peak_flops(device: torch.device, dtype: torch.dtype) -> float:
    """Operations a second of the best of a few large square products in `dtype`, measured once in a process.

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
