"""The settings of both sides that are worth trying where lengths differ."""

from typing import Any, Final

from benchmarks.sft.workload import MEAN_TOKENS

_PACKED_TOKENS: Final = 1024

PLAIN: Final = "single rows"
BEST: Final = (PLAIN, "compiled")
"""TRL's on a CPU: one or the other is ahead, by the precision and the size of the model (`--sweep`)."""
NAMES: Final = (*BEST, "packed", "padding-free", "grouped", "rebalanced", "padded", "defaults")
OURS: Final[dict[str, dict[str, Any]]] = {"plain": {}, "compiled": {"compile": "on"}}
"""Fields of this project's `TrainerConfig`, by what a round calls them."""


def trl_settings(name: str, batch_size: int) -> dict[str, Any]:
    """Arguments of `SFTConfig`, besides those that say what is trained.

    Args:
        name: one of `NAMES`.
        batch_size: conversations of an optimiser step, which the settings share out.

    Raises:
        KeyError: there are no such settings.
    """
    single = {"per_device_train_batch_size": 1, "gradient_accumulation_steps": batch_size}
    quarters = {"per_device_train_batch_size": batch_size // 4, "gradient_accumulation_steps": 4}
    bins = max(1, round(batch_size * MEAN_TOKENS / _PACKED_TOKENS))
    settings: dict[str, dict[str, Any]] = {
        "single rows": single,
        "packed": {
            "packing": True,
            "max_length": _PACKED_TOKENS,
            "per_device_train_batch_size": 1,
            "gradient_accumulation_steps": bins,
        },
        "padding-free": {"padding_free": True, "max_length": None, **quarters},
        "grouped": {"train_sampling_strategy": "group_by_length", **quarters},
        "rebalanced": {"train_sampling_strategy": "batch_rebalance", **quarters},
        "padded": {"per_device_train_batch_size": batch_size},
        "compiled": {"torch_compile": True, **single},
        "defaults": {
            "per_device_train_batch_size": 8,
            "gradient_checkpointing": True,
            "train_sampling_strategy": "random",
        },
    }
    return settings[name]
