"""The loss by which the router of a mixture of experts spreads tokens over its experts, and how evenly it does.

E sum_e f_e P_e over E experts, with f_e the tokens given to expert e over all tokens and P_e the mean of its
probability (Switch Transformers, arXiv 2101.03961, equations 4 to 6). It is computed by transformers' function of the
model's family, which pools the layers, over the real tokens of one microbatch; as in transformers and by default in
Megatron, f_e is therefore that of the microbatch and not of the batch.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from inspect import signature
from typing import Any, Final

import torch
from torch import Tensor, nn

from stillhouse.errors import ConfigError
from stillhouse.training.head.fused import LossSums
from stillhouse.training.model.adapter_targets import fused_experts

_ARGUMENTS: Final = {"gate_logits", "num_experts", "top_k", "attention_mask"}


@dataclass(frozen=True, slots=True)
class RouterLoss:
    """The loss of one model and its coefficient."""

    coef: float
    num_experts: int
    top_k: int
    """Experts of each token."""
    function: Callable[..., Tensor]
    """The family's `load_balancing_loss_func`."""

    def add_to(
        self,
        totals: LossSums,
        router_logits: Sequence[Tensor],
        is_real_BT: Tensor | None,
        num_targets: int,
        scale: float,
    ) -> None:
        """Adds `scale * coef * loss` for each target of a microbatch, and the metrics of the router.

        Args:
            totals: sums over the microbatch's targets.
            router_logits: for each layer [tokens, experts], padding included, as the model returns them.
            is_real_BT: whether a token is not padding; None where none is.
            num_targets: loss positions of the microbatch.
            scale: factor of the loss of one target.
        """
        loss = self.function(
            gate_logits=tuple(router_logits),
            num_experts=self.num_experts,
            top_k=self.top_k,
            attention_mask=is_real_BT,
        )
        totals.loss = totals.loss + loss * (self.coef * scale * num_targets)
        totals.sums["router_aux_loss"] = loss.detach() * num_targets
        totals.sums["expert_max_load"] = self._largest_load(router_logits, is_real_BT) * num_targets

    @torch.no_grad()
    def _largest_load(self, router_logits: Sequence[Tensor], is_real_BT: Tensor | None) -> Tensor:
        """The share of the tokens that the most loaded expert of a layer gets, as a mean over layers."""
        logits_LTE = torch.stack([layer.detach().float().flatten(0, -2) for layer in router_logits])
        chosen_LTE = torch.zeros_like(logits_LTE).scatter_(-1, logits_LTE.topk(self.top_k).indices, 1.0)
        if is_real_BT is not None:
            chosen_LTE *= is_real_BT.flatten()[:, None]
        num_tokens = chosen_LTE.shape[1] if is_real_BT is None else is_real_BT.sum()
        return (chosen_LTE.sum(dim=1).amax(dim=-1) / num_tokens).mean()


def router_loss(causal_lm: nn.Module, coef: float) -> RouterLoss | None:
    """The loss of `causal_lm`, below any adapter, with the coefficient `coef`; None where that is 0.

    Raises:
        ConfigError: the model has no router, or its family no such loss.
    """
    if coef == 0.0:
        return None
    family: Any = causal_lm
    function = getattr(sys.modules[type(causal_lm).__module__], "load_balancing_loss_func", None)
    is_known = function is not None and signature(function).parameters.keys() == _ARGUMENTS
    # Granite 4 has dense models of the same class, with 0 experts.
    if not (is_known and getattr(family, "num_experts", None) and getattr(family, "num_experts_per_tok", None)):
        raise ConfigError(f"router_aux_loss_coef = {coef}: {_reason(causal_lm)}. Leave it at 0")
    assert function is not None
    return RouterLoss(coef, family.num_experts, family.num_experts_per_tok, function)


def _reason(causal_lm: Any) -> str:
    name = type(causal_lm).__name__
    tensors = (*causal_lm.named_parameters(), *causal_lm.named_buffers())
    biases = [tensor for tensor, _ in tensors if tensor.endswith("e_score_correction_bias")]
    if biases:
        return f"{name} balances its experts by a bias of its routers ({biases[0]}) and has no loss for it"
    if fused_experts(causal_lm):
        return f"transformers has no load balancing loss for {name}"
    return f"{name} has no router of experts"
