"""The optimiser (AdamW, AdamW with 8-bit states, or Muon) and the learning-rate schedule.

Weight decay applies to matrices only: norms and biases have no scale to be decayed.
"""

import math
from typing import Any, Final

import torch
from torch import nn
from torch.optim import AdamW, Muon

from stillhouse.config import TrainerConfig
from stillhouse.errors import ConfigError
from stillhouse.training.model.load import require_bitsandbytes
from stillhouse.training.model.student import Student

_EPSILON: Final = 1e-8
_MOMENTUM: Final = 0.95
_UNSET_RATE: Final = 0.0
"""Until `Weights.update` sets the step's own."""
_DECAY_SHARE: Final = 0.2
"""Share of the steps over which `wsd` falls; 0.1 to 0.2 is usual (arXiv 2404.06395, section 4.3)."""


def build_optimizer(student: Student, config: TrainerConfig) -> torch.optim.Optimizer:
    """Return the optimiser of `config` over the student's trained parameters."""
    trained = [p for _, p in student.trained_parameters()]
    match config.optimizer:
        case "adamw":
            return torch.optim.AdamW(_groups(trained, config), **_settings(config), fused=True)
        case "adamw_8bit":
            return _adamw_8bit(trained, student, config)
        case "muon":
            if student.model is not student.causal_lm:
                raise ConfigError(
                    "optimizer = 'muon' makes the update of a whole matrix orthogonal, which an adapter's thin "
                    "matrices are not made for; expected student.parameters = 'full'. Set it, or optimizer to `adamw`"
                )
            tables = _tables(student)
            hidden = [p for p in trained if p.ndim == 2 and not any(p is table for table in tables)]
            others = [p for p in trained if not any(p is matrix for matrix in hidden)]
            return MuonAndAdamW(hidden, _groups(others, config), config.weight_decay, _settings(config))


def _groups(parameters: list[nn.Parameter], config: TrainerConfig) -> list[dict[str, Any]]:
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": config.weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


def _settings(config: TrainerConfig) -> dict[str, Any]:
    return {"lr": _UNSET_RATE, "betas": config.betas, "eps": _EPSILON}


def _tables(student: Student) -> list[nn.Parameter]:
    """Return the embedding and the output layer, which may be one: the weights with a row for each token."""
    return [student.causal_lm.get_input_embeddings().weight, student.head.weight]


def _adamw_8bit(parameters: list[nn.Parameter], student: Student, config: TrainerConfig) -> torch.optim.Optimizer:
    require_bitsandbytes("optimizer = 'adamw_8bit'", student.device, "Set optimizer to `adamw`")
    from bitsandbytes.optim import AdamW8bit, GlobalOptimManager

    # Gradients of rare tokens are too unlike those of their block for a shared scale (arXiv 2110.02861, section 2.3).
    manager, groups = GlobalOptimManager.get_instance(), _groups(parameters, config)
    manager.override_config(_tables(student), "optim_bits", 32)
    return AdamW8bit(groups, **_settings(config))


class MuonAndAdamW(torch.optim.Optimizer):
    """Muon (https://kellerjordan.github.io/posts/muon) over `matrices` and AdamW over `groups`.

    Muon orthogonalises the running mean of a matrix's gradient. Its step is scaled by
    0.2 sqrt(max(rows, columns)), to the root mean square that AdamW's step has (arXiv 2502.16982, section 2.2), so that
    one learning rate and one weight decay serve both. Parameter groups and state are those of the two together, and
    with them `state_dict` and `load_state_dict`.
    """

    def __init__(
        self, matrices: list[nn.Parameter], groups: list[dict[str, Any]], weight_decay: float, settings: dict[str, Any]
    ) -> None:
        muon = {"lr": settings["lr"], "momentum": _MOMENTUM, "adjust_lr_fn": "match_rms_adamw"}
        self._muon = Muon(matrices, weight_decay=weight_decay, **muon)
        self._adamw = AdamW(groups, **settings, fused=True)
        super().__init__([*self._muon.param_groups, *self._adamw.param_groups], {})
        self._share()

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Take a step of both; `closure` is not supported."""
        self._muon.step()
        self._adamw.step()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self._share()

    def _share(self) -> None:
        """Make both use the groups and the state of this object, which loading replaces."""
        num_muon = len(self._muon.param_groups)
        self._muon.param_groups, self._adamw.param_groups = self.param_groups[:num_muon], self.param_groups[num_muon:]
        self._muon.state = self._adamw.state = self.state


def learning_rate(peak: float, config: TrainerConfig, step: int, num_steps: int) -> float:
    """Return the learning rate of step `step`, counted from 0, of `num_steps`.

    It rises by equal parts over `warmup_steps`, the last of which has the peak rate, and then follows `schedule`:
    `linear` and `cosine` fall from there, `wsd` (warm-up, stable, decay: arXiv 2404.06395) falls linearly over the last
    fifth of all steps. Each would reach 0 at step `num_steps`, the first that is not taken.
    """
    if step < config.warmup_steps:
        return peak * (step + 1) / config.warmup_steps
    match config.schedule:
        case "constant":
            return peak
        case "linear":
            share = 1.0 - _progress(step, config.warmup_steps, num_steps)
        case "cosine":
            share = 0.5 * (1.0 + math.cos(math.pi * _progress(step, config.warmup_steps, num_steps)))
        case "wsd":
            start = max(config.warmup_steps, num_steps * (1.0 - _DECAY_SHARE))
            share = 1.0 - _progress(step, start, num_steps)
    return peak * share


def _progress(step: int, start: float, end: int) -> float:
    """Return how far `step` is from `start`, as 0, to `end`, as 1."""
    return min(1.0, max(0.0, (step - start) / max(1.0, end - start)))
