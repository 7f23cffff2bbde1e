"""TRL's `SFTTrainer` on the same conversations; run with TRL's folder on the path.

    python -m benchmarks.sft.sides.trl JOB.json RECORD.json

Settings are fields of `SFTConfig`. Left alone, rows come in our order, for the losses to be compared.
"""

import sys
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import SFTConfig, SFTTrainer

from benchmarks.frame.training import Mark
from benchmarks.sft.sides.job import SftJob, SftRecord, fingerprint


class Marks(TrainerCallback):
    """Marks the end of each step, and notes its loss where the job wants it."""

    def __init__(self, record: SftRecord, *, with_losses: bool) -> None:
        self._record = record
        self._with_losses = with_losses

    def on_step_end(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        """A step has ended."""
        self._record.marks.append(Mark.now(int(state.num_input_tokens_seen)))

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **rest: Any) -> None:
        """Something was logged."""
        if logs is not None and "loss" in logs and self._with_losses:
            self._record.losses.append(logs["loss"])


def main(job: SftJob) -> SftRecord:
    """Trains."""
    torch.set_num_threads(job.num_threads)
    config = _config(job)
    rows = [{"messages": row["messages"]} for row in job.rows()]
    order = job.order(len(rows))
    taken = [row for step in range(job.num_steps) for row in order.rows(step)]
    record = SftRecord()
    trainer = SFTTrainer(
        model=AutoModelForCausalLM.from_pretrained(f"{job.folder}/model", dtype=torch.float32),
        processing_class=AutoTokenizer.from_pretrained(f"{job.folder}/model"),
        train_dataset=Dataset.from_list(rows).select(taken),
        args=config,
        callbacks=[Marks(record, with_losses=job.with_losses)],
    )
    if not config.packing:
        record.rows = fingerprint(
            (row["input_ids"], [label != -100 for label in row["labels"]]) for row in trainer.train_dataset
        )
    trainer.train()
    return record


def _config(job: SftJob) -> SFTConfig:
    settings = {
        "max_steps": job.num_steps,
        "per_device_train_batch_size": job.batch_size,
        "learning_rate": job.learning_rate,
        "lr_scheduler_type": "cosine",
        "weight_decay": job.weight_decay,
        "bf16": job.precision == "bfloat16",
        "logging_steps": 1 if job.with_losses else 10,
        "assistant_only_loss": True,
        "gradient_checkpointing": False,
        "train_sampling_strategy": "sequential",
        "include_num_input_tokens_seen": "non_padding",
    }
    surroundings = {
        "output_dir": job.scratch, "use_cpu": True, "dataloader_pin_memory": False, "save_strategy": "no",
        "report_to": [], "disable_tqdm": True,
    }  # fmt: skip
    return SFTConfig(**{**settings, **surroundings, **job.settings})


if __name__ == "__main__":
    main(SftJob.read(Path(sys.argv[1]))).write(Path(sys.argv[2]))
