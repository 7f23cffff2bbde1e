"""Pipeline YAML of ROLL (RLVR and on-policy distillation) as a config of ours."""

import re
from collections.abc import Mapping
from typing import Any, Final

from stillhouse.convert.chat_rows import verifier_of
from stillhouse.convert.mapping import ConfigMapper, Table, To, to
from stillhouse.types import JsonObject

_REFERENCE: Final = re.compile(r"\$\{([\w.]+)\}")
_CLUSTER: Final = "places work on a cluster's devices: there is one trainer here, started by torchrun"
_FILES: Final = "artifacts lie in runtime.store"
_REWARDS: Final = "the advantage is the reverse KL alone: rewards do not enter it"
_MAX_REFERENCES: Final = 8
"""Longest chain of references followed: one that leads back to itself has no end."""
_BATCHES: Final = "steps take prompts_per_step x group_size trajectories; microbatch_tokens bounds memory"
_SAMPLING: Final = "the student is sampled from its own distribution, which its log-probabilities are of"


def map_roll(body: JsonObject, mapper: ConfigMapper) -> list[str]:
    """Maps the keys of a config; the data files it names."""
    body = resolved(body)
    teacher, rewards = body.pop("teacher", None), body.pop("rewards", None)
    mapper.set("sft.enabled", False, "sft.enabled", False)
    _map_teacher(teacher, body, mapper)
    files = _take_files(body, mapper)
    mapper.apply(body, _TABLE)
    if mapper.get("student.lora_rank") is None:
        mapper.set("student.parameters", "full")
    if isinstance(rewards, dict):
        _map_rewards(rewards, mapper)
    elif rewards is not None:
        mapper.leave("expected reward workers by name", "rewards", rewards)
    return files


def resolved(body: JsonObject) -> JsonObject:
    """The body with `${key}` and `${section.key}` replaced by what they name; others stay as they are."""

    def value_of(path: str) -> Any:
        value: Any = body
        for part in path.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        return value

    def fill(value: Any, depth: int = 0) -> Any:
        if isinstance(value, dict):
            return {key: fill(part, depth) for key, part in value.items()}
        if isinstance(value, list):
            return [fill(part, depth) for part in value]
        if not isinstance(value, str) or depth > _MAX_REFERENCES:
            return value
        whole = _REFERENCE.fullmatch(value)
        if whole is not None and (found := value_of(whole[1])) is not None:
            return fill(found, depth + 1)
        if whole is None and _REFERENCE.search(value):
            return _REFERENCE.sub(lambda match: str(fill(match[0], depth + 1)), value)
        return value

    return {key: fill(value) for key, value in body.items()}


def _map_teacher(teacher: Any, body: JsonObject, mapper: ConfigMapper) -> None:
    pure, mixed = body.pop("is_pure_opd", None), body.pop("use_opd", None)
    is_one = isinstance(teacher, dict) and "model_args" in teacher
    mapper.set("on_policy.enabled", is_one, "teacher", None)
    if is_one:
        mapper.apply({"teacher": teacher}, _TABLE)
    elif teacher is not None:
        mapper.leave("several teachers, routed by tag: one scores here, so that on_policy is off", "teacher", teacher)
    else:
        mapper.leave(
            "there is no teacher: reinforcement learning alone is not offered, so that on_policy is off",
            "teacher",
            None,
        )
    if mixed:
        mapper.leave(f"mixes rewards with the reverse KL. {_REWARDS}", "use_opd", mixed)
    if (pipeline := body.pop("pure_opd_pipeline_type", "rlvr")) != "rlvr":
        mapper.leave("set on_policy.max_turns, and tools in place of environments", "pure_opd_pipeline_type", pipeline)
    elif pure or mixed or is_one:
        mapper.set("on_policy.max_turns", 1, "pure_opd_pipeline_type", "rlvr")


def _take_files(body: JsonObject, mapper: ConfigMapper) -> list[str]:
    files: list[str] = []
    for name in ("student_train", "actor_train"):
        worker = body.get(name)
        data = worker.get("data_args") if isinstance(worker, dict) else None
        named = data.pop("file_name", None) if isinstance(data, dict) else None
        listed = [named] if isinstance(named, str) else named or []
        if isinstance(listed, list) and all(isinstance(file, str) for file in listed):
            files += listed
        else:
            mapper.leave("expected a file or a list of them", f"{name}.data_args.file_name", named)
    return files


def _map_rewards(rewards: Mapping[str, Any], mapper: ConfigMapper) -> None:
    """Reward workers verify answers here; those that no verifier stands for are left."""
    by_tag: dict[str, str] = {}
    for name, worker in rewards.items():
        verifier = verifier_of(name)
        if verifier is None or not isinstance(worker, dict):
            mapper.leave("a reward worker that no verifier stands for: write it as @reward", f"rewards.{name}", worker)
            continue
        tags = worker.get("tag_included")
        by_tag |= dict.fromkeys(map(str, tags) if isinstance(tags, list) and tags else [name], verifier)
        if rest := {key: value for key, value in worker.items() if key not in ("worker_cls", "tag_included")}:
            mapper.leave("answers are verified by prompts.verifier_by_tag, on this machine", f"rewards.{name}", rest)
    if by_tag:
        mapper.set("prompts.verifier_by_tag", by_tag, "rewards", by_tag)


def _dtype(value: Any) -> str:
    names = {"bf16": "bfloat16", "bfloat16": "bfloat16", "fp32": "float32", "float32": "float32"}
    if value not in names:
        raise ValueError("student.dtype is float32 or bfloat16")
    return names[value]


def _lora_rank(value: Any) -> Any:
    return value or None


def _positive(value: Any) -> Any:
    return value if isinstance(value, int | float) and value > 0 else None


_KEYS: Final[Table] = {
    "exp_name": to("tracking.experiment"),
    "seed": to("on_policy.seed"),
    "pretrain": to("student.model"),
    "max_steps": to("on_policy.num_steps"),
    "save_steps": to("on_policy.checkpoint_every_steps"),
    "logging_steps": to("on_policy.log_every_steps"),
    "rollout_batch_size": to("on_policy.prompts_per_step"),
    "num_return_sequences_in_group": to("on_policy.group_size"),
    "response_length": to("on_policy.max_tokens", "evaluation.max_tokens"),
    "sequence_length": to("student.max_length"),
    "opd_kl_coef": to("on_policy.kl_coef"),
    "advantage_clip": to("on_policy.adv_clip"),
    "max_grad_norm": to("on_policy.max_grad_norm"),
    "prompt_length": "bounded together with the answer: student.max_length",
    "actor_train.model_args.model_name_or_path": to("student.model"),
    "actor_train.model_args.dtype": To(("student.dtype",), _dtype),
    "actor_train.model_args.lora_rank": To(("student.lora_rank",), _lora_rank),
    "actor_train.model_args.lora_alpha": to("student.lora_alpha"),
    "actor_train.model_args.lora_dropout": to("student.lora_dropout"),
    "actor_train.model_args.lora_target": "every linear layer is adapted",
    "actor_train.model_args": "chosen by the trainer",
    "actor_train.training_args.learning_rate": to("on_policy.learning_rate"),
    "actor_train.training_args.weight_decay": to("on_policy.weight_decay"),
    "actor_train.training_args.warmup_steps": to("on_policy.warmup_steps"),
    "actor_train.training_args.lr_scheduler_type": to("on_policy.schedule"),
    "actor_train.training_args.max_grad_norm": to("on_policy.max_grad_norm"),
    "actor_train.training_args.per_device_train_batch_size": _BATCHES,
    "actor_train.training_args.gradient_accumulation_steps": _BATCHES,
    "actor_train.training_args.num_train_epochs": "on-policy training counts steps: on_policy.num_steps",
    "actor_train.data_args": "prompts are read by their own form; see prompts",
    "actor_train.strategy_args": _CLUSTER,
    "actor_train.device_mapping": _CLUSTER,
    "actor_train.infer_batch_size": _BATCHES,
    "actor_infer.generating_args.temperature": to("on_policy.temperature"),
    "actor_infer.generating_args.max_new_tokens": to("on_policy.max_tokens", "evaluation.max_tokens"),
    "actor_infer.generating_args.num_return_sequences": to("on_policy.group_size"),
    "actor_infer.generating_args": _SAMPLING,
    "actor_infer.model_args.model_name_or_path": to("student.model"),
    "actor_infer.model_args": "chosen by the trainer",
    "actor_infer.data_args": "prompts are read by their own form; see prompts",
    "actor_infer.strategy_args": _CLUSTER,
    "actor_infer.device_mapping": _CLUSTER,
    "actor_infer.num_gpus_per_worker": _CLUSTER,
    "actor_infer.infer_batch_size": _CLUSTER,
    "teacher.model_args.model_name_or_path": to("teacher.model"),
    "teacher.model_args": "chosen by the trainer",
    "teacher.opd_kl_coef": to("on_policy.kl_coef"),
    "teacher.tag_included": "one teacher scores every prompt",
    "teacher.data_args": "prompts are read by their own form; see prompts",
    "teacher.strategy_args": _CLUSTER,
    "teacher.device_mapping": _CLUSTER,
    "teacher.infer_batch_size": _CLUSTER,
    "reference": "the teacher is the only reference",
    "critic": "the advantage needs no critic",
    "validation": "students are evaluated on the prompts that prompts.held_out_fraction holds out",
    "adv_estimator": _REWARDS,
    "ppo_epochs": "each trajectory is trained on once",
    "pg_variant": "on_policy has one loss: the policy gradient of the reverse KL",
    "loss_agg_mode": "the loss is the mean over all supervised tokens of a step",
    "reward_pretrain": _REWARDS,
    "reward_clip": _REWARDS,
    "whiten_advantages": "advantages are used as they are, clipped by on_policy.adv_clip",
    "async_generation_ratio": "the student samples and trains in turn",
    "eval_steps": "students are evaluated when their training has ended",
    "num_nodes": _CLUSTER,
    "num_gpus_per_node": _CLUSTER,
    "track_with": "MLflow, under tracking",
    "tracker_kwargs": "MLflow, under tracking",
    "hydra": "configs are whole files here",
    "defaults": "configs are whole files here: what others of ROLL's say is not read",
    "global_template": "the student's own chat template is used",
    "output_dir": _FILES,
    "logging_dir": _FILES,
    "rollout_dump_dir": _FILES,
    "checkpoint_config": _FILES,
    "resume_from_checkpoint": "training resumes by itself",
    "system_envs": "environment variables are the shell's; their values are never copied",
}

_TABLE: Final[Table] = dict(_KEYS) | {
    # What pure distillation calls them.
    key.replace("actor_", "student_", 1): rule
    for key, rule in _KEYS.items()
    if key.startswith("actor_")
}
