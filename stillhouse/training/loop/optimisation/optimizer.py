"""The optimiser of what is trained: AdamW, AdamW with 8-bit states, or Muon.

Each has parameter groups with a learning rate `lr`, which the schedule sets anew at every step, and decays matrices
only: norms and biases have no scale to be decayed.
"""

from typing import Any, Final

import torch
from torch import nn

from stillhouse.config import TrainerConfig
from stillhouse.errors import ConfigError
from stillhouse.training.loop.optimisation.muon import MuonAndAdamW
from stillhouse.training.model.quantised import require_bitsandbytes
from stillhouse.training.model.student import Student

_EPSILON: Final = 1e-8


def build_optimizer(student: Student, config: TrainerConfig) -> torch.optim.Optimizer:
    """The optimiser of `config` over the student's trained parameters.

    Raises:
        ConfigError: `adamw_8bit` without CUDA or bitsandbytes, or `muon` for an adapter.
    """
    every = [p for _, p in student.trained_parameters()]
    match config.optimizer:
        case "adamw":
            return torch.optim.AdamW(_groups(every, config), **_settings(config), fused=True)
        case "adamw_8bit":
            return _adamw_8bit(every, student, config)
        case "muon":
            if student.model is not student.causal_lm:
                raise ConfigError(
                    "optimizer = 'muon' makes the update of a whole matrix orthogonal, which an adapter's thin "
                    "matrices are not made for; expected student.parameters = 'full'. Set it, or optimizer to `adamw`"
                )
            tables = _tables(student)
            hidden = [p for p in every if p.ndim == 2 and not any(p is table for table in tables)]
            others = [p for p in every if not any(p is matrix for matrix in hidden)]
            return MuonAndAdamW(hidden, _groups(others, config), config.weight_decay, _settings(config))


def _groups(parameters: list[nn.Parameter], config: TrainerConfig) -> list[dict[str, Any]]:
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": config.weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


def _settings(config: TrainerConfig) -> dict[str, Any]:
    return {"lr": config.learning_rate, "betas": (config.beta1, config.beta2), "eps": _EPSILON}


def _tables(student: Student) -> list[nn.Parameter]:
    """The weights that have a row for each token: embedding and output layer, which may be one."""
    return [student.causal_lm.get_input_embeddings().weight, student.head.weight]


def _adamw_8bit(parameters: list[nn.Parameter], student: Student, config: TrainerConfig) -> torch.optim.Optimizer:
    require_bitsandbytes("optimizer = 'adamw_8bit'", student.device, "Set optimizer to `adamw`")
    from bitsandbytes.optim import AdamW8bit, GlobalOptimManager

    # Rare tokens' gradients are too unlike those of their block for a shared scale (arXiv 2110.02861, section 2.3).
    manager, groups = GlobalOptimManager.get_instance(), _groups(parameters, config)
    manager.override_config(_tables(student), "optim_bits", 32)
    # Before bitsandbytes 0.50 an override holds only for parameters that are made known after it, by their place.
    manager.register_parameters(groups)
    return AdamW8bit(groups, **_settings(config))
