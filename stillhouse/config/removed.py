"""Keys and values that configs had once, and what to use instead."""

from collections.abc import Mapping
from typing import Any, Final

_OWN_LOSS: Final = "leave it out, or write it as a loss of your own (on_policy.loss)"
REMOVED: Final[dict[str, str]] = {
    "on_policy.adv_estimator=mean": "use `rloo`, which is that times G / (G - 1) in a group of G",
    "on_policy.asymmetric": _OWN_LOSS,
    "on_policy.balance=gaps": "use `teachers`, or a teacher's kl_coef",
    "on_policy.balance=spreads": "use `teachers`, or a teacher's kl_coef",
    "on_policy.cispo_max": _OWN_LOSS,
    "on_policy.cispo_min": _OWN_LOSS,
    "on_policy.kl_baseline": "use a `divergence` of kind reverse_kl, whose variance is lower still",
    "on_policy.kl_discount_factor": "leave it out: each token answers for its own KL",
    "on_policy.kl_in_reward": "leave it out: the KL is taken off the advantage",
    "on_policy.loss_fn=cispo": "use `ppo`, or a loss of your own (on_policy.loss)",
    "on_policy.ppo_dual_clip": "leave it out, or bound advantages by adv_clip",
    "on_policy.prefix": "leave it out, or lower on_policy.max_tokens",
    "on_policy.prune": _OWN_LOSS,
    "on_policy.token_weights": _OWN_LOSS,
    "promotion.placebo": "compare with a second training whose on_policy.loss ignores the teacher",
}
"""Dotted path of a key, or path=value of a value that a key no longer takes, and what to use instead."""


def check_removed(body: Mapping[str, Any]) -> None:
    """Raise ValueError naming each removed key or value that a config still has."""
    if found := [key for key in REMOVED if _has(body, key)]:
        raise ValueError("; ".join(f"{key} was removed in this version: {REMOVED[key]}" for key in found))


def _has(body: Mapping[str, Any], key: str) -> bool:
    path, _, value = key.partition("=")
    *sections, name = path.split(".")
    section: Any = body
    for part in sections:
        section = section.get(part) if isinstance(section, Mapping) else None
    return isinstance(section, Mapping) and name in section and value in ("", section[name])
