"""The settings of both sides that are worth trying."""

from typing import Any, Final

BEST: Final = ("whole", "quarters")
"""TRL's on a CPU: one or the other is ahead, by a few per cent (`--sweep`)."""
NAMES: Final = ("whole", "halves", "quarters", "single rows", "static cache", "compiled", "defaults")
OURS: Final[dict[str, dict[str, Any]]] = {"plain": {}}
"""Fields of `OnPolicyConfig`, by what a round calls them."""


def trl_settings(name: str, batch_size: int) -> dict[str, Any]:
    """Arguments of `DistillationConfig`, besides those that say what is trained.

    TRL samples all completions of an optimiser step at once, and pads what it trains on to the longest of them; the
    settings decide how many rows it then trains on at once.

    Args:
        name: one of `NAMES`.
        batch_size: completions of an optimiser step, which the settings share out.

    Raises:
        KeyError: there are no such settings.
    """

    def shares(count: int) -> dict[str, Any]:
        return {"per_device_train_batch_size": batch_size // count, "gradient_accumulation_steps": count}

    settings: dict[str, dict[str, Any]] = {
        "whole": shares(1),
        "halves": shares(2),
        "quarters": shares(4),
        "single rows": shares(batch_size),
        "static cache": {"cache_implementation": "static", **shares(4)},
        "compiled": {"torch_compile": True, **shares(4)},
        "defaults": {"gradient_checkpointing": True, **shares(max(1, batch_size // 8))},
    }
    return settings[name]
