"""Keys of a ROLL pipeline that map independently of others, or why they are unmapped."""

import math
from operator import not_
from typing import Any, Final

from stillhouse.interop.mapping import Approximated, Default, Table, Target, elsewhere, refused, to

_CLUSTER: Final = Approximated(
    "every model is sharded over the devices that train (runtime.num_processes); servers of vLLM have others"
)
_BATCHES: Final = Approximated("steps take prompts_per_step x group_size trajectories; microbatch_tokens bounds memory")
_SAMPLING: Final = Approximated("the student is sampled from its own distribution, which its log-probabilities are of")
_REWARDS: Final = Approximated(
    "a reward is what verification and @reward functions give, normalised by on_policy.adv_estimator"
)
_FORM: Final = "bounds another form of the loss than the one of pg_variant"
_BASE: Final = "a teacher of kind `base` gives the KL to the model before training: on_policy.teachers and kl_coef"
_EPOCHS: Final = "training_args.num_train_epochs"
_DTYPES: Final = {"bf16": "bfloat16", "bfloat16": "bfloat16", "fp32": "float32", "float32": "float32"}


def _dtype(value: Any) -> str:
    if value not in _DTYPES:
        raise ValueError("student.dtype is float32 or bfloat16")
    return _DTYPES[value]


def _off(reason: str) -> Target:
    return refused(reason, unless=not_)


# 0, -1 and 1 leave every token in.
_ALL_TOKENS: Final = refused(_SAMPLING, unless=lambda value: value in (-1, 0, 1))
_WORKER: Final[Table] = {
    "model_args": "chosen by the trainer",
    "data_args": "prompts are read by their own form; see prompts",
    **dict.fromkeys(
        ("use_sequence_packing", "sequence_packing_args"),
        "on_policy.trainer.packing puts rows one behind the other, microbatch_tokens in all",
    ),
    **dict.fromkeys(("strategy_args", "device_mapping", "num_gpus_per_worker", "infer_batch_size"), _CLUSTER),
}


def _of(worker: str, table: Table) -> Table:
    return {f"{worker}.{key}": rule for key, rule in table.items()}


def _trainer(method: str, batches: str, others: Table) -> Table:
    """Return the keys of the worker that trains by a method of ours."""
    return {
        **_WORKER,
        "model_args.model_name_or_path": to("student.model"),
        "model_args.dtype": Target(("student.dtype",), _dtype),
        "model_args.lora_rank": Target(("student.lora_rank",), lambda rank: rank or None),
        "model_args.lora_alpha": to("student.lora_alpha"),
        "model_args.lora_dropout": to("student.lora_dropout"),
        "model_args.lora_target": "every linear layer is adapted",
        "training_args.learning_rate": to(f"{method}.learning_rate"),
        "training_args.weight_decay": to(f"{method}.trainer.weight_decay"),
        "training_args.warmup_steps": to(f"{method}.trainer.warmup_steps"),
        "training_args.lr_scheduler_type": to(f"{method}.trainer.schedule"),
        "training_args.max_grad_norm": to(f"{method}.trainer.max_grad_norm"),
        "training_args.per_device_train_batch_size": batches,
        "training_args.gradient_accumulation_steps": batches,
        **others,
    }


def training_defaults(method: str) -> tuple[Default, ...]:
    """Return what ROLL trains with where a config is silent (roll/configs/{base_config,training_args}.py)."""
    return (
        (f"{method}.trainer.seed", "seed", 42),
        (f"{method}.learning_rate", "training_args.learning_rate", 5e-5),
        (f"{method}.trainer.schedule", "training_args.lr_scheduler_type", "linear"),
        (f"{method}.trainer.betas", "training_args.adam_beta2", [0.9, 0.999]),
        (f"{method}.trainer.checkpoint_every_steps", "save_steps", 50),
        (f"{method}.trainer.log_every_steps", "logging_steps", 1),
    )


TEACHER: Final[Table] = {
    **_WORKER,
    **elsewhere("model_args.model_name_or_path", "opd_kl_coef", "tag_included"),
    "tag_to_template": "the student's own chat template is used",
}


def _shared(method: str) -> Table:
    """Return the keys that mean the same in every pipeline, of one that trains by a method of ours."""
    return {
        "exp_name": to("tracking.experiment"),
        "pretrain": to("student.model"),
        "sequence_length": to("student.max_length"),
        "seed": to(f"{method}.trainer.seed"),
        "save_steps": to(f"{method}.trainer.checkpoint_every_steps"),
        "logging_steps": to(f"{method}.trainer.log_every_steps"),
        "max_grad_norm": to(f"{method}.trainer.max_grad_norm"),
        "validation": Approximated("students are evaluated on the prompts that prompts.held_out_fraction holds out"),
        **dict.fromkeys(("num_nodes", "num_gpus_per_node", "rpc_timeout"), _CLUSTER),
        **dict.fromkeys(("track_with", "tracker_kwargs"), "MLflow, under tracking"),
        "hydra": "configs are whole files here",
        "global_template": "the student's own chat template is used",
        **dict.fromkeys(
            ("output_dir", "logging_dir", "rollout_dump_dir", "checkpoint_config"), "artifacts lie in runtime.store"
        ),
        "resume_from_checkpoint": "training resumes by itself",
        "system_envs": "environment variables are the shell's; their values are never copied",
        "model_name": "students are called by their runs",
    }


_ACTOR: Final = _trainer(
    "on_policy",
    _BATCHES,
    {_EPOCHS: "on-policy training counts steps: on_policy.num_steps", "infer_batch_size": _BATCHES},
)
_SAMPLER: Final[Table] = {
    **_WORKER,
    "generating_args.temperature": to("on_policy.temperature"),
    "generating_args.max_new_tokens": to("on_policy.max_tokens", "evaluation.max_tokens"),
    "generating_args.num_return_sequences": to("on_policy.group_size"),
    **dict.fromkeys(("generating_args.top_p", "generating_args.top_k"), _ALL_TOKENS),
    "generating_args": _SAMPLING,
    "model_args.model_name_or_path": to("student.model"),
    "strategy_args.strategy_name": Approximated(
        "vLLM samples on devices that do not train (runtime.engine, on_policy.engine_url), and else transformers"
    ),
}
KEYS: Final[Table] = {
    **_shared("on_policy"),
    "rollout_batch_size": to("on_policy.prompts_per_step"),
    "num_return_sequences_in_group": to("on_policy.group_size"),
    "response_length": to("on_policy.max_tokens", "evaluation.max_tokens"),
    "opd_kl_coef": to("on_policy.kl_coef"),
    "advantage_clip": to("on_policy.adv_clip"),
    "prompt_length": Approximated("bounded together with the answer: student.max_length"),
    **_of("actor_train", _ACTOR),
    **_of("student_train", _ACTOR),
    **_of("actor_infer", _SAMPLER),
    **_of("student_infer", _SAMPLER),
    "reference": "read as the teacher where a pipeline distils and names none; otherwise: " + _BASE,
    "critic": "the advantage needs no critic",
    "ppo_epochs": to("on_policy.num_passes"),
    "async_generation_ratio": Target(
        ("on_policy.max_staleness",), lambda value: math.ceil(value) if isinstance(value, int | float) else value
    ),
    **dict.fromkeys(("pg_clip", "pg_clip_low", "pg_clip_high", "tis_lower_bound", "tis_upper_bound"), _FORM),
    **dict.fromkeys(("cispo_epsilon_low", "cispo_epsilon_high"), _FORM),
    **dict.fromkeys(("use_pg_clip_range", "dual_clip_loss"), _off(_FORM)),
    "gamma": "a reward counts for every token of its trajectory alike",
    "lambd": "there is no critic",
    "critic_warmup": _off("there is no critic"),
    "init_kl_coef": _BASE,
    **dict.fromkeys(("add_token_level_kl", "use_kl_loss", "kl_loss_coef"), _off(_BASE)),
    "kl_penalty": "the KL is the difference of log-probabilities; see also on_policy.divergence",
    "opsd_max_solution_length": "a hint is not cut: shorten it in the prompt's metadata",
    **dict.fromkeys(("reward_pretrain", "reward_clip"), _REWARDS),
    **dict.fromkeys(("whiten_rewards", "use_reward_scaling"), _off(_REWARDS)),
    "whiten_advantages": _off("advantages are used as they are, clipped by on_policy.adv_clip"),
    "entropy_loss_coef": _off("there is no bonus on the entropy; it is reported and watched"),
    "eval_steps": Approximated("students are evaluated when their training has ended"),
}
_STUDENT: Final = _trainer(
    "sft",
    Approximated(
        "sft.batch_size counts the rows of a step on all devices: per_device_train_batch_size x "
        "gradient_accumulation_steps x the devices that share out data"
    ),
    {
        _EPOCHS: Target(("sft.num_epochs",), lambda epochs: max(1, round(epochs))),
        "data_args": "the tokenizer's chat template is used",
    },
)
SFT_KEYS: Final[Table] = {
    **_shared("sft"),
    **dict.fromkeys(
        ("prompt_key", "query_key", "response_key", "system_key"),
        "rows hold `messages`, or `prompt` and `completion`: rename the columns of the data file",
    ),
    "eval_steps": to("sft.trainer.validate_every_steps"),
    **_of("sft_train", _STUDENT),
}
"""A pipeline that trains on given answers (roll/pipeline/sft/sft_config.py)."""
