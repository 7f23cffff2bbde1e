"""AdamW over what is trained."""

from collections.abc import Iterable
from typing import Final

import torch
from torch import nn

from stillhouse.config import TrainerConfig

_EPSILON: Final = 1e-8


def adamw(parameters: Iterable[nn.Parameter], config: TrainerConfig) -> torch.optim.AdamW:
    """AdamW with weight decay on matrices only: norms and biases have no scale to be decayed."""
    every = list(parameters)
    groups = [
        {"params": [p for p in every if p.ndim >= 2], "weight_decay": config.weight_decay},
        {"params": [p for p in every if p.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=config.learning_rate,
        betas=(config.beta1, config.beta2),
        eps=_EPSILON,
        fused=True,
    )
