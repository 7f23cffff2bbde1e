"""TRL's `DistillationTrainer` on the same prompts; run with TRL's folder on the path.

    python -m benchmarks.on_policy.sides.trl JOB.json FOUND.json

Settings are `DistillationConfig`'s own names. The trainer is TRL's; what is added here ends completions where their
prompts say, and looks at the clock around its sampling and its teacher's passes.
"""

import sys
import time
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    LogitsProcessor,
    LogitsProcessorList,
    Qwen3ForCausalLM,
    TrainerCallback,
)
from trl import DistillationConfig, DistillationTrainer

from benchmarks.on_policy.sides.job import Found, Job, num_sampled
from benchmarks.on_policy.workload import wanted_tokens
from benchmarks.sft.sides.job import Mark


class EndsAsAsked(LogitsProcessor):
    """Forces the end token where a completion has the tokens that its prompt asks for, and costs nothing elsewhere."""

    def __init__(self, prompt_ids: torch.Tensor, attention_mask: torch.Tensor, end_id: int) -> None:
        self._width = prompt_ids.shape[1]
        self._end_id = end_id
        self._rows: dict[int, list[int]] = {}
        for row, (ids, mask) in enumerate(zip(prompt_ids, attention_mask, strict=True)):
            self._rows.setdefault(wanted_tokens(ids[mask.bool()].tolist()), []).append(row)

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """The logits of the next tokens."""
        rows = self._rows.get(input_ids.shape[1] - self._width + 1)
        if rows is not None:
            scores[rows] = -torch.inf
            scores[rows, self._end_id] = 0.0
        return scores


class Student(Qwen3ForCausalLM):
    """A student whose completions are as long as their prompts ask for."""

    def generate(self, input_ids: Any, attention_mask: Any, generation_config: Any, **rest: Any) -> Any:
        """Samples."""
        ends = EndsAsAsked(input_ids, attention_mask, generation_config.eos_token_id[0])
        return super().generate(
            input_ids,
            attention_mask=attention_mask,
            generation_config=generation_config,
            logits_processor=LogitsProcessorList([ends]),
            **rest,
        )


class Watched(DistillationTrainer):
    """TRL's trainer, which notes what it sampled and how long that and the teacher's passes took."""

    def __init__(self, found: Found, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._found = found

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        started = time.perf_counter()
        batch = super()._generate_and_score_completions(inputs)
        self._found.seconds.append({"sample": time.perf_counter() - started, "score": 0.0, "sync": 0.0})
        real = [
            [ids[mask.bool()].tolist() for ids, mask in zip(batch[f"{name}_ids"], batch[f"{name}_mask"], strict=True)]
            for name in ("prompt", "completion")
        ]
        self._found.trajectories.append(list(zip(*real, strict=True)))
        return batch

    def _get_last_hidden_state(self, unwrapped_model: Any, *arguments: Any, **rest: Any) -> Any:
        started = time.perf_counter()
        hidden = super()._get_last_hidden_state(unwrapped_model, *arguments, **rest)
        if not unwrapped_model.training:
            self._found.seconds[-1]["score"] += time.perf_counter() - started
        return hidden


class Marks(TrainerCallback):
    """Marks the end of each step, and notes its loss."""

    def __init__(self, found: Found) -> None:
        self._found = found

    def on_step_end(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        """A step has ended."""
        self._found.marks.append(Mark.now(sum(map(num_sampled, self._found.trajectories))))

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **rest: Any) -> None:
        """Something was logged."""
        if logs is not None and "loss" in logs:
            self._found.losses.append(logs["loss"])


def main(job: Job) -> Found:
    """Trains."""
    torch.set_num_threads(job.num_threads)
    rows = job.rows()
    taken = [rows[row] for step in range(job.num_steps) for row in job.step_rows(step, len(rows))]
    tokenizer = AutoTokenizer.from_pretrained(f"{job.folder}/student")
    student = Student.from_pretrained(f"{job.folder}/student", dtype=torch.float32)
    # Its end token is that of the tokenizer, as it is for us.
    student.generation_config.eos_token_id = tokenizer.eos_token_id
    found = Found()
    Watched(
        found,
        model=student,
        teacher_model=AutoModelForCausalLM.from_pretrained(
            f"{job.folder}/teacher", dtype=getattr(torch, job.precision)
        ),
        processing_class=tokenizer,
        train_dataset=Dataset.from_list([{"prompt": row["messages"]} for row in taken]),
        args=_config(job),
        callbacks=[Marks(found)],
    ).train()
    return found


def _config(job: Job) -> DistillationConfig:
    settings = {
        "max_steps": job.num_steps,
        "per_device_train_batch_size": job.batch_size,
        "learning_rate": job.learning_rate,
        "lr_scheduler_type": "cosine",
        "weight_decay": job.weight_decay,
        "bf16": job.precision == "bfloat16",
        "logging_steps": 1,
        "gradient_checkpointing": False,
        "shuffle_dataset": False,
        "beta": 1.0,
    }
    surroundings = {
        "output_dir": job.scratch, "use_cpu": True, "dataloader_pin_memory": False, "save_strategy": "no",
        "report_to": [], "disable_tqdm": True,
    }  # fmt: skip
    return DistillationConfig(**{**settings, **surroundings, **job.settings})


if __name__ == "__main__":
    main(Job.read(Path(sys.argv[1]))).write(Path(sys.argv[2]))
