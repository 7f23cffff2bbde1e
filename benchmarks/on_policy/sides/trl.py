"""TRL's `DistillationTrainer` or `GRPOTrainer` on the same prompts; run with TRL's folder on the path.

    python -m benchmarks.on_policy.sides.trl JOB.json RECORD.json

Settings are fields of `DistillationConfig` or `GRPOConfig`. The trainers are TRL's; what is added here ends
completions where their prompts say, and looks at the clock around their sampling and the teacher's passes.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import DistillationConfig, DistillationTrainer, GRPOConfig, GRPOTrainer

from benchmarks.frame.training import Mark
from benchmarks.on_policy.lengths import StudentThatEnds
from benchmarks.on_policy.sides.job import OnPolicyJob, OnPolicyRecord, clock, num_sampled
from benchmarks.on_policy.sides.rewards import share_of_even_digits

_COMMON: Final[dict[str, Any]] = {
    "gradient_checkpointing": False,
    "shuffle_dataset": False,
    "logging_steps": 1,
    "save_strategy": "no",
    "report_to": [],
    "disable_tqdm": True,
}


class Watched:
    """One of TRL's trainers, which notes what it sampled and how long that took, rewards included."""

    def __init__(self, record: OnPolicyRecord, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._record = record

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        started = clock()
        batch = super()._generate_and_score_completions(inputs)  # type: ignore[misc]
        self._record.seconds.append({"sample": clock() - started, "score": 0.0, "sync": 0.0})
        real = [
            [ids[mask.bool()].tolist() for ids, mask in zip(batch[f"{name}_ids"], batch[f"{name}_mask"], strict=True)]
            for name in ("prompt", "completion")
        ]
        self._record.trajectories.append(list(zip(*real, strict=True)))
        return batch


class Distillation(Watched, DistillationTrainer):
    """Notes how long the teacher's passes took, too."""

    def _get_last_hidden_state(self, unwrapped_model: Any, *arguments: Any, **rest: Any) -> Any:
        started = clock()
        hidden = super()._get_last_hidden_state(unwrapped_model, *arguments, **rest)
        if not unwrapped_model.training:
            self._record.seconds[-1]["score"] += clock() - started
        return hidden


class Grpo(Watched, GRPOTrainer):
    """Rewards alone."""


class Marks(TrainerCallback):
    """Marks the end of each step, and notes its loss."""

    def __init__(self, record: OnPolicyRecord) -> None:
        self._record = record

    def on_step_end(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        """A step has ended."""
        clock()
        self._record.marks.append(Mark.now(sum(map(num_sampled, self._record.trajectories))))

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **rest: Any) -> None:
        """Something was logged."""
        if logs is not None and "loss" in logs:
            self._record.losses.append(logs["loss"])
            self._record.gradient_norms.append(logs["grad_norm"])


def main(job: OnPolicyJob) -> OnPolicyRecord:
    """Trains."""
    torch.set_num_threads(job.num_threads)
    rows = job.rows()
    taken = [rows[row]["messages"] for step in range(job.num_steps) for row in job.step_rows(step, len(rows))]
    tokenizer = AutoTokenizer.from_pretrained(f"{job.folder}/student")
    student = StudentThatEnds.from_pretrained(f"{job.folder}/student", dtype=torch.float32)
    surroundings = {"output_dir": job.scratch, "use_cpu": True, "dataloader_pin_memory": False}
    settings = {
        "max_steps": job.num_steps,
        "per_device_train_batch_size": job.batch_size // int(os.environ.get("WORLD_SIZE", "1")),
        "learning_rate": job.learning_rate,
        "lr_scheduler_type": "cosine",
        "weight_decay": job.weight_decay,
        "bf16": job.precision == "bfloat16",
    }
    arguments = {**surroundings, **settings, **job.settings}
    if job.group_size > 1:
        return train_by_rewards(student, tokenizer, taken, {"num_generations": job.group_size, **arguments})
    teacher = AutoModelForCausalLM.from_pretrained(f"{job.folder}/teacher", dtype=getattr(torch, job.precision))
    return train(student, teacher, tokenizer, taken, arguments)


def train(
    student: Any, teacher: Any, tokenizer: Any, prompts: Sequence[Any], settings: Mapping[str, Any]
) -> OnPolicyRecord:
    """A training on prompts in their order.

    Args:
        student: trained.
        teacher: frozen.
        tokenizer: of both.
        prompts: messages, those of one step after the other.
        settings: arguments of `DistillationConfig`, besides those that hold for every training here.
    """
    args = DistillationConfig(**{"beta": 1.0, **_COMMON, **settings})
    return _run(Distillation, student, tokenizer, prompts, teacher_model=teacher, args=args)


def train_by_rewards(
    student: Any, tokenizer: Any, prompts: Sequence[Any], settings: Mapping[str, Any]
) -> OnPolicyRecord:
    """A training by GRPO on prompts in their order; every token weighs the same.

    Args:
        student: trained.
        tokenizer: the student's.
        prompts: messages, those of one step after the other.
        settings: arguments of `GRPOConfig`, besides those that hold for every training here.
    """
    args = GRPOConfig(**{"loss_type": "dapo", **_COMMON, **settings})
    return _run(Grpo, student, tokenizer, prompts, reward_funcs=_rewards, args=args)


def _rewards(completions: Sequence[Any], **_: Any) -> list[float]:
    return [share_of_even_digits(messages[-1]["content"]) for messages in completions]


def _run(trainer: Any, student: Any, tokenizer: Any, prompts: Sequence[Any], **arguments: Any) -> OnPolicyRecord:
    # Its end token is that of the tokenizer, as it is for us.
    student.generation_config.eos_token_id = tokenizer.eos_token_id
    record = OnPolicyRecord()
    trainer(
        record,
        model=student,
        processing_class=tokenizer,
        train_dataset=Dataset.from_list([{"prompt": messages} for messages in prompts]),
        callbacks=[Marks(record)],
        **arguments,
    ).train()
    return record


if __name__ == "__main__":
    made = main(OnPolicyJob.read(Path(sys.argv[1])))
    if os.environ.get("RANK", "0") == "0":
        made.write(Path(sys.argv[2]))
