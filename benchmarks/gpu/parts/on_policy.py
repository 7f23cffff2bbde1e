"""On-policy distillation by our trainer and by TRL's `DistillationTrainer`, at the shapes of Qwen3.

The loss is the exact reverse KL. Weights are float32 where all are trained, the rest is bfloat16. A step has 256
completions: of 512 tokens after prompts of 128 with `equal` lengths, of 256 tokens in the middle and at most 1,024 with
`log-normal` ones. Two steps warm up, two are timed, and the training part of a further one of ours is profiled. The
split of a step is shown with the floor of `benchmarks.on_policy.floor` for what this device was measured to do.

For the agreement of losses TRL samples a few small steps, and both train on that.
"""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal

import torch

from benchmarks.gpu.bench import Bench
from benchmarks.gpu.models import Built, build, shape_of
from benchmarks.gpu.plan import Row
from benchmarks.gpu.profile import StepProfiler
from benchmarks.on_policy.bench import turn_of
from benchmarks.on_policy.floor import Machine
from benchmarks.on_policy.lengths import StudentThatEnds
from benchmarks.on_policy.sides import ours
from benchmarks.on_policy.sides.job import OnPolicyRecord, Trajectory
from benchmarks.on_policy.workload import Lengths, Pair, prompts
from benchmarks.sft.workload import word_tokenizer
from stillhouse.attention import use_attention
from stillhouse.training.loop.row_order import distinct_rows
from stillhouse.training.monitoring.throughput import peak_memory_gib
from stillhouse.training.on_policy.teachers.local import LocalTeacher
from stillhouse.training.on_policy.teachers.packed import ScoringSettings
from stillhouse.training.on_policy.teachers.router import Route, TeacherRouter
from stillhouse.training.on_policy.teachers.views import SameVocabulary

_LEARNING_RATE: Final = 1e-5
_NUM_WARM_UPS: Final = 2
_NUM_STEPS: Final = _NUM_WARM_UPS + 2
_TEMPLATE_TOKENS: Final = 9
"""Tokens of a prompt besides its words: the chat template's, and the first word, which says how long to answer."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A student, its teacher and a workload."""

    pair: Pair
    parameters: Literal["full", "lora"]
    batch_size: int
    """Completions of an optimiser step."""
    lengths: Lengths
    microbatch_tokens: int
    """Most tokens that ours takes through the models at once."""
    microbatch_rows: int
    """Rows that TRL takes through the models at once."""
    num_steps: int = _NUM_STEPS

    def rows(self) -> list[dict[str, Any]]:
        """The prompts of the whole training."""
        count = self.num_steps * self.batch_size
        return list(prompts(count, self.pair.student.vocabulary, seed=0, lengths=self.lengths))

    def ordered(self) -> list[Any]:
        """Their messages in the order in which our method takes them."""
        rows = self.rows()
        places = [distinct_rows(step, self.batch_size, len(rows), seed=0) for step in range(self.num_steps)]
        return [rows[place]["messages"] for step in places for place in step]


def equal_lengths(prompt: int, completion: int) -> Lengths:
    """Prompts and completions of exactly so many tokens."""
    words = prompt - _TEMPLATE_TOKENS
    return Lengths(words, (words, words), completion, (completion, completion))


def measure(row: Row, bench: Bench) -> None:
    """Distils by one side, or holds the losses of both against each other."""
    if row.options["side"] == "both":
        _measure_agreement(bench)
    else:
        _measure_speed(setting_of(row.options, bench), row.options["side"], bench)


def setting_of(options: dict[str, Any], bench: Bench) -> Setting:
    """The setting of a row, or its tiny likeness."""
    student, teacher = options["pair"].split(" from ")
    pair = Pair(shape_of(student, bench), shape_of(teacher, bench))
    parameters: Literal["full", "lora"] = "full" if student == "0.6B" else "lora"
    if bench.tiny:
        lengths = equal_lengths(16, 8) if options["lengths"] == "equal" else Lengths(16, (9, 20), 12, (4, 20))
        return Setting(pair, parameters, 4, lengths, microbatch_tokens=256, microbatch_rows=2)
    lengths = (
        equal_lengths(128, 512)
        if options["lengths"] == "equal"
        else Lengths(prompt=128, prompt_bounds=(16, 512), completion=256, completion_bounds=(16, 1024))
    )
    return Setting(pair, parameters, 256, lengths, microbatch_tokens=1 << 15, microbatch_rows=16)


def _measure_speed(setting: Setting, side: str, bench: Bench) -> None:
    machine = Machine.measured("bfloat16", bench.device)
    student, teacher = _build(setting, bench)
    if bench.on_gpu:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(bench.device)
    if side == "trl":
        record = _train_trl(setting, student, teacher, bench)
    else:
        record = _train_ours(replace(setting, num_steps=setting.num_steps + 1), student, teacher, bench, profiled=True)
        bench.record(record.profile)
    turn = turn_of(record.only(_NUM_WARM_UPS - 1, setting.num_steps), setting.pair, machine)
    bench.record(
        {
            "s_per_step": turn.speed.s_per_step,
            "sampled_tokens_per_s": turn.speed.tokens_per_s,
            "peak_memory_gib": peak_memory_gib(bench.device),
            "split_s": turn.split,
            "floor_s": turn.floor,
            "floor_total_s": sum(turn.floor.values()),
            "bytes_per_s": machine.bytes_per_s,
            "losses": record.losses,
        }
    )


def _measure_agreement(bench: Bench) -> None:
    shape = shape_of("0.6B", bench)
    pair = Pair(shape, shape_of("1.7B", bench))
    lengths = Lengths(16, (9, 20), 12, (4, 20)) if bench.tiny else Lengths()
    setting = Setting(pair, "full", 4 if bench.tiny else 32, lengths, 1 << 14, microbatch_rows=4, num_steps=4)
    trl = _train_trl(setting, *_build(setting, bench), bench)
    replayed = _train_ours(setting, *_build(setting, bench), bench, replayed=trl.trajectories)
    differences = [abs(a - b) for a, b in zip(replayed.losses, trl.losses, strict=True)]
    bench.record({"largest_loss_difference": max(differences), "losses": replayed.losses, "trl_losses": trl.losses})


def _build(setting: Setting, bench: Bench) -> tuple[Built, Built]:
    student = build(setting.pair.student, bench, parameters=setting.parameters, model_class=StudentThatEnds)
    return student, build(setting.pair.teacher, bench, parameters="frozen", seed=1)


def _train_ours(
    setting: Setting,
    student: Built,
    teacher: Built,
    bench: Bench,
    *,
    replayed: Sequence[Sequence[Trajectory]] | None = None,
    profiled: bool = False,
) -> OnPolicyRecord:
    vocabulary, compiled = setting.pair.student.vocabulary, bench.on_gpu and replayed is None
    scoring = ScoringSettings("teacher", kl_coef=1.0, temperature=1.0, batch_tokens=setting.microbatch_tokens)
    config = ours.distillation_config(
        {
            "num_steps": setting.num_steps,
            "prompts_per_step": setting.batch_size,
            "max_concurrent": setting.batch_size,
            "learning_rate": _LEARNING_RATE,
            "teacher": "random",
            "trainer": {
                "microbatch_tokens": setting.microbatch_tokens,
                # As `auto` does in a training that is long enough for it.
                "compile": "on" if compiled else "off",
            },
        }
    )
    views = SameVocabulary(word_tokenizer(vocabulary))
    scorer = LocalTeacher(
        scoring, use_attention(teacher.causal_lm), bench.device, vocabulary=vocabulary, compiled=compiled
    )
    teachers = TeacherRouter([Route("teacher", scorer, views=views)])
    trained = student.student(bench)
    profiler = StepProfiler(trained.step, trained.step.backbone, bench) if profiled else None
    with tempfile.TemporaryDirectory() as work_dir:
        return ours.train(trained, teachers, setting.rows(), config, Path(work_dir), replayed, profiler)


def _train_trl(setting: Setting, student: Built, teacher: Built, bench: Bench) -> OnPolicyRecord:
    from benchmarks.on_policy.sides import trl

    with tempfile.TemporaryDirectory() as work_dir:
        settings = {
            "output_dir": work_dir,
            "max_steps": setting.num_steps,
            "per_device_train_batch_size": setting.microbatch_rows,
            "gradient_accumulation_steps": setting.batch_size // setting.microbatch_rows,
            "max_completion_length": setting.lengths.completion_bounds[1],
            "learning_rate": _LEARNING_RATE,
            "lr_scheduler_type": "constant",
            "bf16": True,
            "use_cpu": not bench.on_gpu,
        }
        tokenizer = word_tokenizer(setting.pair.student.vocabulary)
        return trl.train(student.model, teacher.causal_lm, tokenizer, setting.ordered(), settings)
