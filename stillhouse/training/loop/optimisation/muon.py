"""Muon for hidden matrices beside AdamW for all else, as one optimiser."""

from typing import Any, Final

import torch
from torch import nn
from torch.optim import AdamW, Muon

_MOMENTUM: Final = 0.95


class MuonAndAdamW(torch.optim.Optimizer):
    """Muon (https://kellerjordan.github.io/posts/muon) over `matrices` and AdamW over `groups`.

    Muon makes the running mean of a matrix's gradient orthogonal and steps by that. Its step is scaled by
    0.2 sqrt(max(rows, columns)), to the root mean square that AdamW's step has (arXiv 2502.16982, section 2.2), so that
    one learning rate and one weight decay serve both. Parameter groups and state are those of the two together, and
    with them `state_dict` and `load_state_dict`.

    Args:
        matrices: two-dimensional weights between the embedding and the output layer.
        groups: parameter groups of everything else.
        weight_decay: decoupled weight decay of `matrices`.
        settings: learning rate of both, and AdamW's `betas` and `eps`.
    """

    def __init__(
        self,
        matrices: list[nn.Parameter],
        groups: list[dict[str, Any]],
        weight_decay: float,
        settings: dict[str, Any],
    ) -> None:
        self._muon = Muon(
            matrices,
            lr=settings["lr"],
            weight_decay=weight_decay,
            momentum=_MOMENTUM,
            adjust_lr_fn="match_rms_adamw",
        )
        self._adamw = AdamW(groups, **settings, fused=True)
        super().__init__([*self._muon.param_groups, *self._adamw.param_groups], {})
        self._share()

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """One step of both; nothing here evaluates the loss anew."""
        self._muon.step()
        self._adamw.step()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continues from a `state_dict`."""
        super().load_state_dict(state_dict)
        self._share()

    def _share(self) -> None:
        """Lets both work on the groups and the state of this object, which are new ones after loading."""
        num_muon = len(self._muon.param_groups)
        self._muon.param_groups, self._adamw.param_groups = self.param_groups[:num_muon], self.param_groups[num_muon:]
        self._muon.state = self._adamw.state = self.state
