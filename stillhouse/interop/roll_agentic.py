"""Environments of ROLL's agentic pipelines: groups, turns and lengths (roll/pipeline/agentic/agentic_config.py)."""

from collections.abc import Mapping
from typing import Any, Final

from stillhouse.interop.mapping import Approximated, ConfigMapper, section
from stillhouse.types import JsonObject

_ENVIRONMENT: Final = Approximated("environments become tools: write them as functions under @tool in tools.file")
_INCLUDED: Final = "defined in a file that `defaults` names, which was not found"
_VALIDATION: Final = Approximated("students are evaluated on held-out prompts: prompts.held_out_fraction")
_STEPS: Final = "a reward counts for its whole trajectory; rewards of single steps are not credited apart"
_WINDOW: Final = Approximated(
    "bounds a whole trajectory there; here the model's context does, and max_tokens each turn"
)
_ROLLOUT_BATCH_SIZE: Final = 128


def is_agentic(body: Mapping[str, Any]) -> bool:
    return "train_env_manager" in body or "custom_envs" in body


def map_agentic(body: JsonObject, mapper: ConfigMapper) -> None:
    """Map the environments and pop their keys from `body`.

    ROLL counts trajectories, `rollout_batch_size` in all, in groups of `train_env_manager.group_size`; it sets
    `num_return_sequences` to 1 whatever the file says.
    """
    manager, environments = dict(section(body, "train_env_manager")), section(body, "custom_envs")
    body.pop("train_env_manager", None)
    body.pop("custom_envs", None)
    for name, environment in environments.items():
        is_known = isinstance(environment, dict)
        mapper.skip(_ENVIRONMENT if is_known else _INCLUDED, f"custom_envs.{name}", environment)
    size = manager.pop("group_size", 1)
    mapper.set("on_policy.group_size", size, "train_env_manager.group_size", size)
    batch = body.pop("rollout_batch_size", _ROLLOUT_BATCH_SIZE)
    if _is_count(size) and _is_count(batch):
        mapper.set("on_policy.prompts_per_step", max(1, batch // size), "rollout_batch_size", batch)
    _map_lengths(body, [one for one in environments.values() if isinstance(one, dict)], mapper)
    for key in ("batch_adjust_mode", "step_reward_gamma", "step_reward_weight", "episode_reward_weight"):
        if key in body:
            mapper.skip(_STEPS, key, body.pop(key))
    mapper.apply(manager, {}, "train_env_manager.", _ENVIRONMENT)
    if (validation := body.pop("val_env_manager", None)) is not None:
        mapper.skip(_VALIDATION, "val_env_manager", validation)


def reward_norms(body: JsonObject) -> tuple[Any, Any]:
    """Pop `reward_normalization`; return `norm_mean_type` and `norm_std_type` as ROLL derives them."""
    norms = section(body, "reward_normalization")
    body.pop("reward_normalization", None)
    over = "batch" if str(norms.get("grouping", "batch")).lower() == "batch" else "group"
    method = norms.get("method", "identity")
    mean = over if method in ("mean", "mean_std", "asym_clip") else None
    std = over if method in ("mean_std", "asym_clip") else None
    return norms.get("norm_mean_type") or mean, norms.get("norm_std_type") or std


def _map_lengths(body: JsonObject, environments: list[JsonObject], mapper: ConfigMapper) -> None:
    sampling = [section(body, name, "generating_args") for name in ("actor_infer", "student_infer")]
    for arguments in sampling:
        arguments.pop("num_return_sequences", None)
    lengths = [
        ("max_tokens_per_step", body.pop("max_tokens_per_step", None)),
        *(("max_tokens_per_step", environment.get("max_tokens_per_step")) for environment in environments),
        *(("max_new_tokens", arguments.pop("max_new_tokens", None)) for arguments in sampling),
    ]
    turns = [
        ("max_actions_per_traj", body.pop("max_actions_per_traj", None)),
        *(("max_steps", environment.get("max_steps")) for environment in environments),
    ]
    for name, choose, given in (("max_tokens", min, lengths), ("max_turns", max, turns)):
        if counted := [(value, key) for key, value in given if _is_count(value)]:
            value, key = choose(counted)
            mapper.set(f"on_policy.{name}", value, key, value)
            mapper.set(f"evaluation.{name}", value, key, value)
    if (window := body.get("sequence_length")) is not None:
        mapper.skip(_WINDOW, "sequence_length", window)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and value > 0
