"""The output layer and the loss in one: gradients are computed together with the loss, a chunk of tokens at a time.

The logits of a chunk live in one buffer, which their gradient then overwrites; those of a whole microbatch never exist,
nothing is computed twice, and only the gradients of hidden states and weight are kept for the backward pass.
A teacher's logits of the same chunk live in a second buffer, which the gradient of the divergence overwrites. Of a
teacher whose most probable tokens alone are known that buffer holds the gradient.

Dimensions: N loss positions, C those of a chunk, H hidden, V vocabulary.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import torch
from torch import Tensor, nn

from stillhouse.config import Divergence
from stillhouse.serving.score import UNSCALED, LogitScaling
from stillhouse.training.head.comparison import ComparisonResult, TeacherComparison
from stillhouse.training.head.compiled import MIN_TOKENS, compiled_gradients_, compiled_scores
from stillhouse.training.head.layer import OutputLayer, SoftCap
from stillhouse.training.head.scores import Reference, TokenLosses, TokenScores, TopReference
from stillhouse.training.head.softmax import Slopes, logit_gradients_, softmax_, wide
from stillhouse.training.head.top_comparison import TopComparison

CPU_CHUNK_ELEMENTS: Final = 3 << 23
"""Most logits of one chunk on a CPU: 96 MiB in float32. Half of it makes the matrix products of a large vocabulary too
thin, twice as much is hardly faster."""
GPU_CHUNK_ELEMENTS: Final = 1 << 29
"""Most logits of one chunk elsewhere: 1 GiB in bfloat16. Estimated, not measured: a GPU wants thousands of tokens in
each matrix product, and every chunk adds to the weight's gradient, at some 20 bytes a weight."""

MethodLoss = Callable[[TokenScores, Mapping[str, Tensor]], TokenLosses]
"""Losses of some tokens from their scores and the method's values; elementwise along the tokens."""


@dataclass(slots=True)
class LossSums:
    """Sums over the loss positions of a microbatch. They stay on the device; only `loss` carries a gradient."""

    loss: Tensor
    """The sum of the losses times the scale; call `backward` on it once."""
    sums: dict[str, Tensor] = field(default_factory=dict)
    """The sum of each of the method's means."""
    ratios: dict[str, Tensor] = field(default_factory=dict)
    """The two sums, as shape [2], of each of the method's ratios."""
    maxima: dict[str, Tensor] = field(default_factory=dict)
    """The largest of each of the method's maxima; minus infinity where there is no token."""

    def add(self, losses: TokenLosses, scale: float) -> None:
        """Add the losses of more tokens."""
        self.loss += losses.losses_N.detach().sum() * scale
        for name, values_C in losses.means.items():
            self.sums[name] = values_C.detach().sum() + self.sums.get(name, 0.0)
        for name, pair in losses.ratios.items():
            self.ratios[name] = torch.stack([part_C.detach().sum() for part_C in pair]) + self.ratios.get(name, 0.0)
        for name, values_C in losses.maxima.items():
            least = values_C.new_full((1,), -torch.inf)
            self.maxima[name] = torch.cat([values_C.detach(), self.maxima.get(name, least).view(1)]).max()


def chunk_tokens(num_tokens: int, vocabulary: int, device_type: str, chunk_elements: int | None = None) -> int:
    """Return the tokens of each chunk of at most `chunk_elements` logits (None: the device's default); at least one."""
    if chunk_elements is None:
        chunk_elements = CPU_CHUNK_ELEMENTS if device_type == "cpu" else GPU_CHUNK_ELEMENTS
    num_chunks = max(1, math.ceil(num_tokens / max(1, chunk_elements // vocabulary)))
    return max(1, math.ceil(num_tokens / num_chunks))


def fused_loss(
    hidden_NH: Tensor,
    head: nn.Linear,
    targets_N: Tensor,
    values: Mapping[str, Tensor],
    method_loss: MethodLoss,
    *,
    scale: float,
    temperature: float = 1.0,
    divergence_temperature: float | None = None,
    wants_entropy: bool = False,
    divergence: Sequence[Divergence] = (),
    reference: Reference | TopReference | None = None,
    scaling: LogitScaling = UNSCALED,
    chunk_elements: int | None = None,
    compiled: bool = False,
) -> LossSums:
    """Return the summed losses of the targets under softmax(scaling(head(hidden)) / temperature), ready for `backward`.

    Matrix products run in autocast's type where autocast is on, else as `hidden_NH` is. Scores, and the sum of the
    weight's gradient over chunks, are float32, or float64 for float64 input. The gradient of what is frozen is not
    computed, and none is outside grad mode. The teacher's logits are made beside the student's, in the same type.

    Args:
        hidden_NH: last hidden states at the positions that predict a target; N may be 0.
        head: the output layer, weight of shape [V, H].
        targets_N: token ids.
        values: the method's values of each target, each of shape [N].
        method_loss: called with the scores and values of one chunk after the other.
        scale: factor of the loss.
        temperature: of the softmax.
        divergence_temperature: of both softmaxes where student and teacher are compared; None takes `temperature`.
        wants_entropy: compute the entropy of each score too.
        divergence: terms of the scores' divergence from the teacher.
        reference: the teacher at the same positions.
        scaling: what the model does with its output layer's products.
        chunk_elements: as `chunk_tokens` takes it.
        compiled: use compiled kernels for the passes over logits.

    Raises:
        ValueError: the reference has another number of positions than there are targets, or shares more ids than
            student or teacher have.
    """
    device_type = hidden_NH.device.type
    dtype = torch.get_autocast_dtype(device_type) if torch.is_autocast_enabled(device_type) else hidden_NH.dtype
    num_tokens, vocabulary = len(targets_N), len(head.weight)
    size = chunk_tokens(num_tokens, vocabulary, device_type, chunk_elements)
    totals = LossSums(hidden_NH.new_zeros((), dtype=wide(dtype)))
    layer = OutputLayer(hidden_NH, head.weight, head.bias, dtype)
    with torch.no_grad(), torch.autocast(device_type, enabled=False):
        buffer_CV = hidden_NH.new_empty((size, vocabulary), dtype=dtype)
        cap = None if scaling.cap is None else SoftCap(scaling.factor, scaling.cap, buffer_CV, compiled=compiled)
        # A factor alone is part of the temperature.
        softness = temperature if cap is not None else temperature / scaling.factor
        compared_at = temperature if divergence_temperature is None else divergence_temperature
        compared_softness = softness * (compared_at / temperature)
        comparison: TeacherComparison | TopComparison | None = None
        if isinstance(reference, TopReference):
            comparison = TopComparison(
                reference, targets_N, divergence, buffer_CV, softness=compared_softness, compiled=compiled
            )
        elif reference is not None:
            comparison = TeacherComparison(
                *(reference, targets_N, divergence, compared_at, buffer_CV),
                softness=compared_softness,
                compiled=compiled,
            )
        # Without a token there is still one empty chunk, so that the totals have the same names.
        for first in range(0, max(1, num_tokens), size):
            chunk = slice(first, min(first + size, num_tokens))
            products_CV = layer.logits(chunk, buffer_CV)
            logits_CV = products_CV if cap is None else cap.capped_(products_CV)
            compared = ComparisonResult() if comparison is None else comparison.chunk(chunk, logits_CV)
            is_compiled = compiled and len(logits_CV) >= MIN_TOKENS
            make_scores = compiled_scores if is_compiled else softmax_
            scores = make_scores(logits_CV, targets_N[chunk], softness, wants_entropy=wants_entropy)
            if comparison is None and divergence:
                # Without a teacher the student is compared with itself.
                compared = ComparisonResult(torch.zeros_like(scores.logprobs_N), scores.logprobs_N.clone())
            scores = replace(
                scores, divergence_N=compared.divergence_C, reference_logprobs_N=compared.reference_logprobs_C
            )
            chunk_values = {name: values_N[chunk] for name, values_N in values.items()}
            if not layer.is_trained:
                totals.add(method_loss(scores, chunk_values), scale)
                continue
            losses, slopes = _differentiated(method_loss, scores, chunk_values, scale / softness)
            if slopes.divergence_C is not None and compared_softness != softness:
                slopes = slopes._replace(divergence_C=slopes.divergence_C * (softness / compared_softness))
            totals.add(losses, scale)
            if is_compiled:
                compiled_gradients_(logits_CV, scores, slopes, compared.gradients_CS, softness)
            else:
                logit_gradients_(logits_CV, scores, slopes, compared.gradients_CS)
            layer.backward(chunk, logits_CV if cap is None else cap.backward_(products_CV, logits_CV))
    totals.loss = _KnownGradients.apply(totals.loss, layer.gradients, hidden_NH, head.weight, head.bias)
    return totals


def _differentiated(
    method_loss: MethodLoss, scores: TokenScores, values: Mapping[str, Tensor], scale: float
) -> tuple[TokenLosses, Slopes]:
    """Return a chunk's losses, and the derivatives of `scale` times their sum by the scores."""
    leaves = {
        "logprobs_C": scores.logprobs_N,
        "divergence_C": scores.divergence_N,
    }
    wanted = {name: leaf for name, leaf in leaves.items() if leaf is not None}
    with torch.enable_grad():
        for leaf in wanted.values():
            leaf.requires_grad_()
        losses = method_loss(scores, values)
        total = losses.losses_N.sum() * scale
    slopes = torch.autograd.grad(total, list(wanted.values()), materialize_grads=True)
    return losses, Slopes(**dict(zip(wanted, slopes, strict=True)))


class _KnownGradients(torch.autograd.Function):
    """A value whose gradients were computed along with it."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, gradients: list[Tensor | None], *inputs: Tensor | None) -> Tensor:
        """Return the value itself, differentiable by `inputs`."""
        # Not saved by autograd, whose hooks (for instance activation offloading) should not see gradients.
        ctx.gradients = gradients
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor | None, ...]:
        """Multiply the known gradients by the outer one in place; possible only once."""
        gradients, ctx.gradients = ctx.gradients, None
        if gradients is None:
            raise RuntimeError("a fused loss was differentiated twice; its gradients are used up the first time")
        return None, None, *(None if gradient is None else gradient.mul_(outer[0]) for gradient in gradients)
