"""Keys of a ROLL pipeline that map independently of others, or why they are unmapped."""

import math
from typing import Any, Final

from stillhouse.interop.mapping import Approximated, Table, Target, to

CLUSTER: Final = "places work on a cluster's devices: there is one trainer here, started by torchrun"
_FILES: Final = "artifacts lie in runtime.store"
_BATCHES: Final = Approximated("steps take prompts_per_step x group_size trajectories; microbatch_tokens bounds memory")
_ENGINE: Final = "the student is sampled in the training process; on_policy.engine_url names a server of vLLM"
SAMPLING: Final = Approximated("the student is sampled from its own distribution, which its log-probabilities are of")
_REWARDS: Final = Approximated(
    "a reward is what verification and @reward functions give, normalised by on_policy.adv_estimator"
)
PACKING: Final = "on_policy.trainer.packing puts rows one behind the other, microbatch_tokens in all"
_FORM: Final = "bounds another form of the loss than the one of pg_variant"
_BASE: Final = "the KL to the model before training is that of a teacher of kind `base`: on_policy.teachers and kl_coef"


def dtype(value: Any) -> str:
    names = {"bf16": "bfloat16", "bfloat16": "bfloat16", "fp32": "float32", "float32": "float32"}
    if value not in names:
        raise ValueError("student.dtype is float32 or bfloat16")
    return names[value]


def lora_rank(value: Any) -> Any:
    return value or None


def _positive(value: Any) -> Any:
    return value if isinstance(value, int | float) and value > 0 else None


def _batches_ahead(value: Any) -> Any:
    return math.ceil(value) if isinstance(value, int | float) else value


def _off(reason: str) -> Target:
    """A switch or a factor that is unmapped only if it is on."""

    def refuse(value: Any) -> None:
        if value:
            raise ValueError(reason)

    return Target((), refuse)


def _all_tokens(value: Any) -> None:
    """Refuse a nucleus or a `top_k`: 0, -1 and 1 leave every token in."""
    if value not in (-1, 0, 1):
        raise ValueError(SAMPLING)


TEACHER: Final[Table] = {
    # Mapped by map_teachers.
    "model_args.model_name_or_path": Target((), lambda _: None),
    "opd_kl_coef": Target((), lambda _: None),
    "tag_included": Target((), lambda _: None),
    "model_args": "chosen by the trainer",
    "data_args": "prompts are read by their own form; see prompts",
    "tag_to_template": "the student's own chat template is used",
    "use_sequence_packing": PACKING,
    "sequence_packing_args": PACKING,
    "strategy_args": CLUSTER,
    "device_mapping": CLUSTER,
    "infer_batch_size": CLUSTER,
}

SHARED: Final[Table] = {
    "exp_name": to("tracking.experiment"),
    "pretrain": to("student.model"),
    "sequence_length": to("student.max_length"),
    "validation": Approximated("students are evaluated on the prompts that prompts.held_out_fraction holds out"),
    "num_nodes": CLUSTER,
    "num_gpus_per_node": CLUSTER,
    "track_with": "MLflow, under tracking",
    "tracker_kwargs": "MLflow, under tracking",
    "hydra": "configs are whole files here",
    "global_template": "the student's own chat template is used",
    "output_dir": _FILES,
    "logging_dir": _FILES,
    "rollout_dump_dir": _FILES,
    "checkpoint_config": _FILES,
    "resume_from_checkpoint": "training resumes by itself",
    "system_envs": "environment variables are the shell's; their values are never copied",
    "rpc_timeout": CLUSTER,
    "model_name": "students are called by their runs",
}
"""Keys that mean the same in every pipeline."""

_KEYS: Final[Table] = {
    **SHARED,
    "seed": to("on_policy.trainer.seed"),
    "save_steps": to("on_policy.trainer.checkpoint_every_steps"),
    "logging_steps": to("on_policy.trainer.log_every_steps"),
    "rollout_batch_size": to("on_policy.prompts_per_step"),
    "num_return_sequences_in_group": to("on_policy.group_size"),
    "response_length": to("on_policy.max_tokens", "evaluation.max_tokens"),
    "opd_kl_coef": to("on_policy.kl_coef"),
    "advantage_clip": to("on_policy.adv_clip"),
    "max_grad_norm": to("on_policy.trainer.max_grad_norm"),
    "prompt_length": Approximated("bounded together with the answer: student.max_length"),
    "actor_train.model_args.model_name_or_path": to("student.model"),
    "actor_train.model_args.dtype": Target(("student.dtype",), dtype),
    "actor_train.model_args.lora_rank": Target(("student.lora_rank",), lora_rank),
    "actor_train.model_args.lora_alpha": to("student.lora_alpha"),
    "actor_train.model_args.lora_dropout": to("student.lora_dropout"),
    "actor_train.model_args.lora_target": "every linear layer is adapted",
    "actor_train.model_args": "chosen by the trainer",
    "actor_train.training_args.learning_rate": to("on_policy.learning_rate"),
    "actor_train.training_args.weight_decay": to("on_policy.trainer.weight_decay"),
    "actor_train.training_args.warmup_steps": to("on_policy.trainer.warmup_steps"),
    "actor_train.training_args.lr_scheduler_type": to("on_policy.trainer.schedule"),
    "actor_train.training_args.max_grad_norm": to("on_policy.trainer.max_grad_norm"),
    "actor_train.training_args.per_device_train_batch_size": _BATCHES,
    "actor_train.training_args.gradient_accumulation_steps": _BATCHES,
    "actor_train.training_args.num_train_epochs": "on-policy training counts steps: on_policy.num_steps",
    "actor_train.data_args": "prompts are read by their own form; see prompts",
    "actor_train.use_sequence_packing": PACKING,
    "actor_train.sequence_packing_args": PACKING,
    "actor_train.strategy_args": CLUSTER,
    "actor_train.device_mapping": CLUSTER,
    "actor_train.infer_batch_size": _BATCHES,
    "actor_infer.generating_args.temperature": to("on_policy.temperature"),
    "actor_infer.generating_args.max_new_tokens": to("on_policy.max_tokens", "evaluation.max_tokens"),
    "actor_infer.generating_args.num_return_sequences": to("on_policy.group_size"),
    "actor_infer.generating_args.top_p": Target((), _all_tokens),
    "actor_infer.generating_args.top_k": Target((), _all_tokens),
    "actor_infer.generating_args": SAMPLING,
    "actor_infer.model_args.model_name_or_path": to("student.model"),
    "actor_infer.model_args": "chosen by the trainer",
    "actor_infer.data_args": "prompts are read by their own form; see prompts",
    "actor_infer.strategy_args.strategy_name": _ENGINE,
    "actor_infer.strategy_args": CLUSTER,
    "actor_infer.device_mapping": CLUSTER,
    "actor_infer.num_gpus_per_worker": CLUSTER,
    "actor_infer.infer_batch_size": CLUSTER,
    "reference": "read as the teacher where a pipeline distils and names none; otherwise: " + _BASE,
    "critic": "the advantage needs no critic",
    "ppo_epochs": to("on_policy.num_passes"),
    "async_generation_ratio": Target(("on_policy.max_staleness",), _batches_ahead),
    "pg_clip": _FORM,
    "pg_clip_low": _FORM,
    "pg_clip_high": _FORM,
    "use_pg_clip_range": _off(_FORM),
    "dual_clip_loss": _off(_FORM),
    "tis_lower_bound": _FORM,
    "tis_upper_bound": _FORM,
    "cispo_epsilon_low": _FORM,
    "cispo_epsilon_high": _FORM,
    "gamma": "a reward counts for every token of its trajectory alike",
    "lambd": "there is no critic",
    "critic_warmup": _off("there is no critic"),
    "add_token_level_kl": _off(_BASE),
    "use_kl_loss": _off(_BASE),
    "init_kl_coef": _BASE,
    "kl_loss_coef": _off(_BASE),
    "kl_penalty": "the KL is the difference of log-probabilities; see also on_policy.divergence",
    "opsd_max_solution_length": "a hint is not cut: shorten it in the prompt's metadata",
    "reward_pretrain": _REWARDS,
    "reward_clip": _REWARDS,
    "whiten_rewards": _off(_REWARDS),
    "use_reward_scaling": _off(_REWARDS),
    "whiten_advantages": _off("advantages are used as they are, clipped by on_policy.adv_clip"),
    "entropy_loss_coef": _off("there is no bonus on the entropy; it is reported and watched"),
    "eval_steps": Approximated("students are evaluated when their training has ended"),
}

KEYS: Final[Table] = dict(_KEYS) | {
    # Names in pure distillation.
    key.replace("actor_", "student_", 1): rule
    for key, rule in _KEYS.items()
    if key.startswith("actor_")
}
