"""One side's training on a GPU.

python -m benchmarks.on_policy.gpu.side FOLDER

The folder holds `job.json` and gets `found.json`. What TRL sampled is left there as `sampled.json`.
"""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

import torch
from transformers import AutoModelForCausalLM

from benchmarks.on_policy.bench import Turn
from benchmarks.on_policy.floor import Machine
from benchmarks.on_policy.gpu.plan import LORA_RANK, SIZES, GpuFound, GpuJob
from benchmarks.on_policy.lengths import StudentThatEnds
from benchmarks.on_policy.sides import ours
from benchmarks.on_policy.sides.job import Found
from benchmarks.sft.workload import word_tokenizer
from stillhouse.config import StudentConfig
from stillhouse.training.on_policy.teachers.local import LocalSettings, LocalTeacher
from stillhouse.training.on_policy.teachers.reading import SameTokens
from stillhouse.training.on_policy.teachers.routing import Route, Teachers
from stillhouse.training.student.adapters import new_adapter
from stillhouse.training.student.student import Student
from stillhouse.training.watching.throughput import peak_memory_gib

_LEARNING_RATE: Final = 1e-5
_SAMPLED: Final = "sampled.json"


def build_models(job: GpuJob) -> tuple[Any, Any, Any]:
    """What is trained, the causal language model in it and the teacher, with random weights on the job's device."""
    size = SIZES[job.size]
    torch.manual_seed(0)
    with torch.device(job.device):
        teacher = AutoModelForCausalLM.from_config(size.pair.teacher.config(), dtype=torch.bfloat16)
        dtype = torch.float32 if size.parameters == "full" else torch.bfloat16
        student = StudentThatEnds._from_config(size.pair.student.config(), dtype=dtype)
    if size.parameters == "full":
        return student, student, teacher
    adapter = StudentConfig(lora_rank=LORA_RANK, lora_alpha=2.0 * LORA_RANK)
    return new_adapter(student, adapter, seed=0), student, teacher


def train_ours(job: GpuJob, sampled: Path, work_dir: Path) -> Found:
    """Trains with this project's trainer, on what TRL sampled where that is asked for."""
    size = SIZES[job.size]
    model, causal_lm, frozen = build_models(job)
    tokenizer = word_tokenizer(size.pair.student.vocabulary)
    settings = LocalSettings(
        "teacher",
        kl_coef=1.0,
        temperature=1.0,
        batch_tokens=size.microbatch_tokens,
        vocabulary=size.pair.student.vocabulary,
    )
    teacher = LocalTeacher(settings, frozen.requires_grad_(False).eval(), torch.device(job.device))
    config = ours.distillation_config(
        {
            "num_steps": job.num_steps,
            "prompts_per_step": size.batch_size,
            "learning_rate": _LEARNING_RATE,
            "microbatch_tokens": size.microbatch_tokens,
            "teacher": "random",
        }
    )
    return ours.train(
        Student(model.eval(), causal_lm, tokenizer, "random", torch.bfloat16),
        Teachers([Route("teacher", teacher, reading=SameTokens(tokenizer))]),
        job.rows(),
        config,
        work_dir,
        json.loads(sampled.read_text(encoding="utf-8")) if job.side == "replay" else None,
    )


def train_trl(job: GpuJob, sampled: Path, work_dir: Path) -> Found:
    """Trains with TRL, and leaves what it sampled."""
    from benchmarks.on_policy.sides import trl

    size = SIZES[job.size]
    model, _, teacher = build_models(job)
    settings = {
        "output_dir": str(work_dir),
        "max_steps": job.num_steps,
        "per_device_train_batch_size": size.microbatch_rows,
        "gradient_accumulation_steps": size.batch_size // size.microbatch_rows,
        "max_completion_length": size.lengths.completion_bounds[1],
        "learning_rate": _LEARNING_RATE,
        "lr_scheduler_type": "constant",
        "bf16": True,
        "use_cpu": job.device == "cpu",
    }
    found = trl.train(model, teacher, word_tokenizer(size.pair.student.vocabulary), job.ordered(), settings)
    sampled.write_text(json.dumps(found.trajectories), encoding="utf-8")
    return found


def main(folder: Path) -> None:
    """Trains, and measures."""
    job = GpuJob.read(folder / "job.json")
    device = torch.device(job.device)
    machine = Machine.measured("bfloat16", device)
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    with tempfile.TemporaryDirectory() as work_dir:
        train = train_trl if job.side == "trl" else train_ours
        found = train(job, folder / _SAMPLED, Path(work_dir))
    turn = Turn.of(found, SIZES[job.size].pair, machine)
    GpuFound(
        s_per_step=turn.speed.s_per_step,
        tokens_per_s=turn.speed.tokens_per_s,
        peak_memory_gib=peak_memory_gib(device),
        split=turn.split,
        floor=turn.floor,
        losses=found.losses,
    ).write(folder / "found.json")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
