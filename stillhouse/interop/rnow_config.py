"""Converts `config.yml` of rnow (rnow/models.py, and keys of its earlier versions)."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from stillhouse.interop.mapping import (
    LEARN_FROM_IT,
    Approximated,
    ConfigMapper,
    Default,
    Table,
    Target,
    elsewhere,
    refused,
    section,
    set_algorithm,
    to,
)
from stillhouse.interop.sources import absolute_path, with_absolute_models
from stillhouse.sellers import cannot_score
from stillhouse.types import JsonObject

_MODEL_ID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
_EFFORTS: Final = {"disabled": "none", "easy": "low", "hard": "high"}
_NO_TEACHER: Final = (
    "distillation on policy needs teacher.path, so that on_policy is off: name a local model in teacher.model"
)
_UNNAMED: Final = (
    "rnow names no teacher here: set teacher.model, and teacher.base_url where it is behind an endpoint, to sample it "
    "and to compare the student with it"
)
_WINDOW: Final = Approximated(
    "bounds prompt and answers together there; here it bounds each answer, and the model's context the conversation"
)
_KL_COEF: Final = 0.01
_ROLLOUT: Final[tuple[Default, ...]] = tuple(
    (f"{section}.{target}", f"rollout.{key}", value)
    for target, key, value in (("max_turns", "max_turns", 1), ("max_tokens", "max_context_window", 32768))
    for section in ("rollouts", "on_policy", "evaluation")
)
_DEFAULTS: Final[Mapping[str, tuple[Default, ...]]] = {
    "rl": (
        *_ROLLOUT,
        ("on_policy.group_size", "data.group_size", 4),
        ("on_policy.loss_fn", "algorithm.loss_fn", "ppo"),
        ("on_policy.adv_estimator", "algorithm.adv_estimator", "grpo"),
    ),
    "distill": (*_ROLLOUT, ("on_policy.group_size", "data.group_size", 4)),
}
"""rnow/models.py, where they differ from ours or decide."""


def map_rnow(body: JsonObject, mapper: ConfigMapper, folder: Path) -> list[str]:
    """Map the keys of a config; return the data files it names.

    rnow looks for `tools.py` and `rewards.py` in `folder`, where the config is.
    """
    body = with_absolute_models(body, folder)
    mode = _map_mode(body, mapper)
    mapper.apply(body, {**_SHARED, **(_SFT if mode == "sft" else _ON_POLICY)})
    _map_lengths(section(body, "rollout").get("max_context_window"), mapper)
    mapper.fill(_DEFAULTS.get(str(mode), ()))
    if mode != "sft":
        set_algorithm(mapper)
    rank = mapper.get("student.lora_rank") or 32
    mapper.set("student.parameters", "lora")
    if mapper.get("student.lora_alpha") is None and isinstance(rank, int):
        # Its default depends on the rank; ours does not.
        mapper.set("student.lora_alpha", 2 * rank, "model.qlora_rank", rank)
    if mode in ("sft", "rl") and mapper.get("teacher.model") is None:
        mapper.skip(_UNNAMED, "teacher", None)
    for name, target in (("tools.py", "tools.file"), ("rewards.py", "tools.rewards_file")):
        if (folder / name).is_file():
            mapper.set(target, absolute_path(name, folder), name, name)
    file = section(body, "data").get("train_file", "train.jsonl")
    return [file] if isinstance(file, str) else []


def map_epochs(body: JsonObject, mapper: ConfigMapper, num_prompts: int) -> None:
    """Map the epochs of on-policy training, which counts steps, over `num_prompts`; 0 if that is not known."""
    epochs = section(body, "trainer").get("num_epochs")
    batch = mapper.get("on_policy.prompts_per_step")
    if not mapper.get("on_policy.enabled") or not isinstance(epochs, int):
        return
    if num_prompts and isinstance(batch, int):
        mapper.set("on_policy.num_steps", epochs * -(-num_prompts // batch), "trainer.num_epochs", epochs)
    else:
        steps = "counted in steps: set on_policy.num_steps to epochs x prompts / prompts_per_step"
        mapper.skip(steps, "trainer.num_epochs", epochs)


def _map_mode(body: JsonObject, mapper: ConfigMapper) -> Any:
    """Map and return the training mode.

    Distillation from a teacher that cannot score becomes supervised training on its outputs, and its section `teacher`
    is popped from `body`.
    """
    mode, teacher = body.get("dataset_type"), section(body, "teacher").get("path")
    refusal = cannot_score(str(teacher)) if mode == "distill" else None
    if refusal is not None:
        mapper.skip(f"{refusal}. {LEARN_FROM_IT}", "teacher.path", teacher)
        mapper.set("teacher.model", teacher, "teacher.path", teacher)
        del body["teacher"]
        mode = "sft"
    if mode == "distill" and teacher is None:
        mapper.skip(_NO_TEACHER, "teacher.path", None)
    elif mode not in ("sft", "distill", "rl"):
        raw_text = "training on raw text is not offered here: sft and on_policy are both off"
        mapper.skip(raw_text, "dataset_type", mode)
    mapper.set("sft.enabled", mode == "sft", "dataset_type", mode)
    mapper.set("on_policy.enabled", mode == "rl" or (mode == "distill" and teacher is not None), "dataset_type", mode)
    if mode == "rl":
        mapper.set("on_policy.reward_coef", 1.0, "dataset_type", "rl")
        coef = section(body, "algorithm").get("kl_penalty_coef", _KL_COEF)
        if coef:
            # The KL is that to the model before training.
            mapper.set("on_policy.teachers", [{"name": "base", "kind": "base"}], "algorithm.kl_penalty_coef", coef)
        mapper.set("on_policy.kl_coef", coef, "algorithm.kl_penalty_coef", coef)
    return mode


def _map_lengths(window: Any, mapper: ConfigMapper) -> None:
    """Bound answers, which have no limit of their own in newer configs, by the window of a conversation."""
    if window is None:
        return
    targets = ("rollouts.max_tokens", "on_policy.max_tokens", "evaluation.max_tokens")
    unset = [target for target in targets if mapper.get(target) is None]
    for target in unset:
        mapper.set(target, window, "rollout.max_context_window", window)
    if unset:
        mapper.skip(_WINDOW, "rollout.max_context_window", window)


def _model(value: Any) -> str:
    if isinstance(value, list):
        raise ValueError("one student a run here: write a config for each model")
    if _MODEL_ID.fullmatch(str(value)):
        raise ValueError("a model in an account at rnow: name a folder or a Hugging Face id in student.model")
    return str(value)


def _not_all(value: Any) -> Any:
    if value == 1:
        raise ValueError("rows for training must be left over")
    return value


def _no_critic(value: Any) -> Any:
    if value == "gae":
        raise ValueError(
            "there is no critic: rewards are compared within their group, by grpo, mean, rloo or reinforce"
        )
    return value


def _save_step(value: Any) -> Any:
    return value if isinstance(value, int) and value > 0 else None


def _mcp(value: Any) -> list[JsonObject]:
    urls = [value] if isinstance(value, str) else value
    if not isinstance(urls, list) or not all(isinstance(url, str) for url in urls):
        raise ValueError("expected an address or a list of them")
    addresses = [url if "://" in url else f"http://{url.removesuffix('/')}/mcp" for url in urls]
    return [{"name": f"mcp_{number}", "url": url} for number, url in enumerate(addresses, start=1)]


_SHARED: Final[Table] = {
    **elsewhere("dataset_type", "data.train_file"),
    "data.val_split": Target(("dataset.validation_fraction",), _not_all),
    "model.path": Target(("student.model",), _model),
    "model.qlora_rank": to("student.lora_rank"),
    "model.qlora_alpha": to("student.lora_alpha"),
    **dict.fromkeys(("model.name", "model.description"), "students are called by their runs"),
    "project_name": Target(("tracking.experiment",), lambda name: name or None),
    **dict.fromkeys(
        ("project_id", "organization_id", "dataset_id", "description", "evals"), "belongs to an account at rnow"
    ),
    "trainer.max_billing": "a bound on what training at rnow costs; budget bounds what the teacher costs",
    "trainer.eval_step": "students are evaluated when their training has ended",
    "rollout.termination_policy": refused(
        "the first answer without a tool call ends a rollout here", unless=lambda policy: policy == "last_tool"
    ),
    **dict.fromkeys(
        ("rollout.reasoning_mode", "rollout.thinking_mode"),
        Target(("rollouts.reasoning_effort",), lambda mode: _EFFORTS.get(mode, mode)),
    ),
    "rollout.max_context_window": to("student.max_length"),
    "rollout.mcp_url": Target(("tools.mcp",), _mcp),
    "rollout.tool_timeout": Target(("tools.timeout_s",), float),
    "rollout.rollout_timeout": Target(("rollouts.timeout_s",), float),
    "rollout.reward_timeout": "@reward(timeout_s=...) bounds a reward here",
    "rollout.max_tool_response": "tools.max_result_characters bounds the results of tools here, in characters",
    "rollout.max_tool_response_chars": to("tools.max_result_characters"),
    "rollout.include_thinking": "rewards are always given the reasoning, in a key of its own",
}
_SFT: Final[Table] = {
    "data.batch_size": to("sft.batch_size"),
    "data.group_size": "rollouts of one prompt, which supervised training does not sample",
    "trainer.num_epochs": to("sft.num_epochs"),
    "trainer.learning_rate": to("sft.learning_rate"),
    "trainer.save_step": Target(("sft.trainer.checkpoint_every_steps",), _save_step),
    "rollout.max_turns": to("rollouts.max_turns", "evaluation.max_turns"),
    "rollout.max_tokens": to("rollouts.max_tokens", "evaluation.max_tokens"),
    "algorithm": "supervised training has one loss",
    "teacher": "rnow takes no teacher for supervised training",
}
_ON_POLICY: Final[Table] = {
    # The configured tools decide whether a teacher is agentic.
    **elsewhere("trainer.num_epochs", "teacher.agentic"),
    "data.batch_size": to("on_policy.prompts_per_step"),
    "data.group_size": to("on_policy.group_size"),
    "trainer.learning_rate": to("on_policy.learning_rate"),
    "trainer.save_step": Target(("on_policy.trainer.checkpoint_every_steps",), _save_step),
    "rollout.max_turns": to("rollouts.max_turns", "on_policy.max_turns", "evaluation.max_turns"),
    "rollout.max_tokens": to("rollouts.max_tokens", "on_policy.max_tokens", "evaluation.max_tokens"),
    "teacher.path": to("teacher.model"),
    "algorithm.kl_penalty_coef": to("on_policy.kl_coef"),
    "algorithm.loss_fn": to("on_policy.loss_fn"),
    "algorithm.adv_estimator": Target(("on_policy.adv_estimator",), _no_critic),
}
