"""Converts supervised fine-tuning on given answers (roll/pipeline/sft/sft_config.py)."""

from typing import Final

from stillhouse.interop.mapping import Approximated, ConfigMapper, Table, Target, to
from stillhouse.interop.roll_keys import CLUSTER, PACKING, SHARED, dtype, lora_rank
from stillhouse.types import JsonObject

_COLUMNS: Final = "rows hold `messages`, or `prompt` and `completion`: rename the columns of the data file"
_BATCH: Final = Approximated(
    "sft.batch_size counts the rows of a step on all devices: per_device_train_batch_size x "
    "gradient_accumulation_steps x the devices that share out data"
)

_KEYS: Final[Table] = {
    **SHARED,
    "seed": to("sft.trainer.seed"),
    "save_steps": to("sft.trainer.checkpoint_every_steps"),
    "logging_steps": to("sft.trainer.log_every_steps"),
    "max_grad_norm": to("sft.trainer.max_grad_norm"),
    "prompt_key": _COLUMNS,
    "query_key": _COLUMNS,
    "response_key": _COLUMNS,
    "system_key": _COLUMNS,
    "eval_steps": to("sft.trainer.validate_every_steps"),
    "sft_train.model_args.model_name_or_path": to("student.model"),
    "sft_train.model_args.dtype": Target(("student.dtype",), dtype),
    "sft_train.model_args.lora_rank": Target(("student.lora_rank",), lora_rank),
    "sft_train.model_args.lora_alpha": to("student.lora_alpha"),
    "sft_train.model_args.lora_dropout": to("student.lora_dropout"),
    "sft_train.model_args.lora_target": "every linear layer is adapted",
    "sft_train.model_args": "chosen by the trainer",
    "sft_train.training_args.num_train_epochs": Target(("sft.num_epochs",), lambda epochs: max(1, round(epochs))),
    "sft_train.training_args.learning_rate": to("sft.learning_rate"),
    "sft_train.training_args.weight_decay": to("sft.trainer.weight_decay"),
    "sft_train.training_args.warmup_steps": to("sft.trainer.warmup_steps"),
    "sft_train.training_args.lr_scheduler_type": to("sft.trainer.schedule"),
    "sft_train.training_args.max_grad_norm": to("sft.trainer.max_grad_norm"),
    "sft_train.training_args.per_device_train_batch_size": _BATCH,
    "sft_train.training_args.gradient_accumulation_steps": _BATCH,
    "sft_train.data_args": "the tokenizer's chat template is used",
    "sft_train.use_sequence_packing": PACKING,
    "sft_train.sequence_packing_args": PACKING,
    "sft_train.strategy_args": CLUSTER,
    "sft_train.device_mapping": CLUSTER,
    "sft_train.infer_batch_size": CLUSTER,
}
_DEFAULTS: Final = (
    ("sft.num_epochs", "training_args.num_train_epochs", 1),
    ("sft.trainer.seed", "seed", 42),
    ("sft.learning_rate", "training_args.learning_rate", 5e-5),
    ("sft.trainer.schedule", "training_args.lr_scheduler_type", "linear"),
    ("sft.trainer.betas", "training_args.adam_beta2", [0.9, 0.999]),
    ("sft.trainer.checkpoint_every_steps", "save_steps", 50),
    ("sft.trainer.log_every_steps", "logging_steps", 1),
)


def map_sft(body: JsonObject, files: list[str], mapper: ConfigMapper) -> None:
    """Maps a pipeline that trains on the rows of `files` and samples nothing."""
    mapper.set("sft.enabled", True, "sft_train", "sft_train")
    mapper.set("on_policy.enabled", False)
    mapper.set("sft.dataset_weight", 0.0)
    mapper.set("sft.sources", [{"path": file} for file in files], "sft_train.data_args.file_name", files)
    mapper.apply(body, _KEYS)
    mapper.fill(_DEFAULTS)
    if mapper.get("student.lora_rank") is None:
        mapper.set("student.parameters", "full")
