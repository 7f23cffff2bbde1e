"""The output layer in training: the fused loss, and all logits at once with autograd.

Dimensions: N loss positions, H hidden, R the teacher's hidden, V vocabulary, K most probable tokens.
"""

import math
from collections.abc import Mapping
from typing import Final, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy as naive_cross_entropy
from torch.nn.functional import kl_div, linear

from stillhouse.config import Divergence
from stillhouse.training.head.fused import fused_loss
from stillhouse.training.head.scores import Reference, TokenLosses, TokenScores
from stillhouse.training.losses import cross_entropy
from stillhouse.training.repeatability import use_fast_float32_products

Side = Literal["ours", "naive"]
Loss = Literal["cross_entropy", "reverse_kl", "forward_kl", "jsd", "top_k"]

_TOP_K: Final = 32
_DIVERGENCES: Final[dict[Loss, tuple[Divergence, ...]]] = {
    "cross_entropy": (),
    "reverse_kl": (Divergence(kind="reverse_kl"),),
    "forward_kl": (Divergence(kind="forward_kl"),),
    "jsd": (Divergence(kind="jsd", beta=0.5),),
    "top_k": (Divergence(kind="forward_kl", top_k=_TOP_K),),
}


class Setting(NamedTuple):
    """What is computed, and how."""

    loss: Loss
    """Of the targets, or an exact divergence from a teacher of the same width: `jsd` at beta = 0.5, `top_k` the forward
    KL over the teacher's 32 most probable tokens and the mass of the others."""
    num_tokens: int
    vocabulary: int
    hidden: int
    dtype: str
    """Type of the matrix products: float32, or bfloat16 under autocast."""
    is_trained: bool
    """Whether the weight is trained, and then float32, or frozen in the type of the products."""
    chunk_elements: int
    num_threads: int
    onednn: bool
    """Whether float32 products may go through oneDNN, as a training lets them."""
    device: str = "cpu"
    compiled: bool = False
    """Whether ours makes the passes over the logits by compiled kernels."""


class Head:
    """Inputs of one setting, and the two ways from them to a loss with gradients."""

    def __init__(self, setting: Setting) -> None:
        torch.set_num_threads(setting.num_threads)
        if setting.onednn:
            use_fast_float32_products()
        generator = torch.Generator(setting.device).manual_seed(0)
        dtype = getattr(torch, setting.dtype)
        self._setting = setting
        self.autocast = torch.autocast(setting.device, torch.bfloat16, enabled=dtype is torch.bfloat16)
        with torch.device(setting.device):
            shape = (setting.num_tokens, setting.hidden)
            self.hidden_NH = torch.randn(shape, generator=generator).to(dtype).requires_grad_()
            self.layer = nn.Linear(
                setting.hidden, setting.vocabulary, bias=False, dtype=torch.float32 if setting.is_trained else dtype
            ).requires_grad_(setting.is_trained)
            nn.init.normal_(self.layer.weight, std=setting.hidden**-0.5, generator=generator)
            self.targets_N = torch.randint(setting.vocabulary, (setting.num_tokens,), generator=generator)
            self._reference = None if setting.loss == "cross_entropy" else self._new_reference(generator, dtype)

    def _new_reference(self, generator: torch.Generator, dtype: torch.dtype) -> Reference:
        """The student's own output layer over hidden states that differ by half."""
        shape = (self._setting.num_tokens, self._setting.hidden)
        noise_NH = 0.5 * torch.randn(shape, generator=generator)
        layer = nn.Linear(self._setting.hidden, self._setting.vocabulary, bias=False, dtype=dtype).requires_grad_(False)
        layer.weight.copy_(self.layer.weight.detach())
        return Reference(self.hidden_NH.detach() + noise_NH.to(dtype), layer, self._setting.vocabulary)

    def run(self, side: Side) -> list[Tensor]:
        """Loss, gradient of the hidden states [N, H], and that of the weight [V, H] where it is trained."""
        self.clear_gradients()
        with self.autocast:
            loss = self._our_loss() if side == "ours" else self._naive_loss()
        loss.backward()
        return [x for x in (loss.detach(), self.hidden_NH.grad, self.layer.weight.grad) if x is not None]

    def clear_gradients(self) -> None:
        """Forgets those of an earlier run."""
        self.hidden_NH.grad = self.layer.weight.grad = None

    def _naive_loss(self) -> Tensor:
        logits_NV = linear(self.hidden_NH, self.layer.weight)
        if self._reference is None:
            return naive_cross_entropy(logits_NV, self.targets_N)
        student_NV = logits_NV.float().log_softmax(-1)
        with torch.no_grad():
            teacher_NV = linear(self._reference.hidden_NR, self._reference.head.weight).float().log_softmax(-1)
        if self._setting.loss == "reverse_kl":
            return _kl(student_NV, teacher_NV)
        if self._setting.loss == "forward_kl":
            return _kl(teacher_NV, student_NV)
        if self._setting.loss == "top_k":
            ids_NK = teacher_NV.topk(_TOP_K).indices
            return _kl(_with_tail(teacher_NV.gather(1, ids_NK)), _with_tail(student_NV.gather(1, ids_NK)))
        mixture_NV = torch.logsumexp(torch.stack([student_NV, teacher_NV]) + math.log(0.5), dim=0)
        return 0.5 * (_kl(student_NV, mixture_NV) + _kl(teacher_NV, mixture_NV))

    def _our_loss(self) -> Tensor:
        return fused_loss(
            self.hidden_NH,
            self.layer,
            self.targets_N,
            {},
            _method_loss,
            scale=1.0 / self._setting.num_tokens,
            divergence=_DIVERGENCES[self._setting.loss],
            reference=self._reference,
            chunk_elements=self._setting.chunk_elements,
            compiled=self._setting.compiled,
        ).loss


def _kl(one_NV: Tensor, other_NV: Tensor) -> Tensor:
    """KL(one || other), a mean over tokens, of log-probabilities."""
    return kl_div(other_NV, one_NV, reduction="batchmean", log_target=True)


def _with_tail(logprobs_NK: Tensor) -> Tensor:
    """The log-probabilities [N, K + 1] of K tokens and of all others together."""
    tail_N = torch.log1p(-logprobs_NK.exp().sum(-1).clamp(max=1.0 - 1e-7))
    return torch.cat([logprobs_NK, tail_N[:, None]], dim=1)


def _method_loss(scores: TokenScores, _: Mapping[str, Tensor]) -> TokenLosses:
    losses_N = cross_entropy(scores.logprobs_N) if scores.divergence_N is None else scores.divergence_N
    return TokenLosses(losses_N, means={"token_accuracy": scores.is_top_N.float()})
