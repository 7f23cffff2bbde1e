"""Sections of a training from plain settings, so that a test says only what it is about."""

from collections.abc import Mapping
from typing import Any

from stillhouse.config import OnPolicyConfig, SftConfig, TrainerConfig


def sft_of(settings: Mapping[str, Any]) -> SftConfig:
    """Return the section with `settings`, of which those of its trainer are told by their names."""
    return SftConfig.model_validate(_nested(settings))


def on_policy_of(settings: Mapping[str, Any]) -> OnPolicyConfig:
    """Return the section as `sft_of`, by the algorithm whose settings these are unless it is named."""
    has_kl = settings.get("kl_coef") != 0.0
    fitting = "divergence" if settings.get("divergence") else "sampled_kl"
    if settings.get("reward_coef"):
        fitting = "mixed" if has_kl else "rewards"
    return OnPolicyConfig.model_validate({"algorithm": fitting, **_nested(settings)})


def _nested(settings: Mapping[str, Any]) -> dict[str, Any]:
    of_trainer = {name: value for name, value in settings.items() if name in TrainerConfig.model_fields}
    others = {name: value for name, value in settings.items() if name not in of_trainer}
    return {**others, "trainer": of_trainer} if of_trainer else others
