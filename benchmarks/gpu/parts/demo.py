"""The demo's trainings on the device, without a flow around them.

The embedded teacher samples rows with its calculator; the embedded student learns from them by SFT and then on-policy,
and is examined after each.

Settings are those of configs/demo.yaml. Accuracies are of held-out prompts, sampled at temperature 1.
"""

import json
import tempfile
import time
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Final

from benchmarks.gpu.bench import Bench
from benchmarks.gpu.environment import ROOT
from benchmarks.gpu.plan import Row
from stillhouse.config import (
    DistillConfig,
    OnPolicyConfig,
    RuntimeConfig,
    SftConfig,
    StudentConfig,
    ToolsConfig,
    load_config,
)
from stillhouse.config.training import SftSource
from stillhouse.embedded import embedded_path
from stillhouse.progress.state import NoProgress
from stillhouse.serving.generator import Generator
from stillhouse.store.fingerprint import prompt_id
from stillhouse.store.records import write_jsonl
from stillhouse.tools.toolbox import Toolbox
from stillhouse.training.job import TrainJob
from stillhouse.training.model.load import load_student
from stillhouse.training.monitoring.generations import Generations
from stillhouse.training.monitoring.metrics import NoListener
from stillhouse.training.on_policy.sampling.sampler import Sampler, SamplingSettings
from stillhouse.training.on_policy.sampling.transformers import TransformersEngines
from stillhouse.training.run_job import run_job
from stillhouse.training.trajectories import SampledTrajectory
from stillhouse.types import JsonObject, Message, Prompt, PromptMetadata

TEACHER: Final = "embedded:teacher"
STUDENT: Final = "embedded:student"
_NUM_HELD_OUT: Final = 200
_TINY_PROMPTS: Final = 12


def measure(row: Row, bench: Bench) -> None:
    """Runs the demo's trainings."""
    config = load_config(ROOT / "configs/demo.yaml", [])
    shop = Shop(bench, config.tools)
    with tempfile.TemporaryDirectory() as folder:
        trainings = Trainings(Path(folder), config, shop, bench)
        bench.record({"base_accuracy": trainings.accuracy(STUDENT), "teacher_accuracy": trainings.accuracy(TEACHER)})
        sft, seconds = trainings.sft(STUDENT, shop.answered_by(TEACHER, config, bench))
        bench.record({"sft_accuracy": trainings.accuracy(sft), "sft_s": seconds})
        student, seconds = trainings.on_policy(sft, TEACHER)
        bench.record({"on_policy_accuracy": trainings.accuracy(student), "on_policy_s": seconds})


class Shop:
    """The embedded prompts: those to train on and those held out, each with the calculator."""

    def __init__(self, bench: Bench, tools: ToolsConfig) -> None:
        with embedded_path("prompts.jsonl").open(encoding="utf-8") as file:
            rows = [json.loads(line) for line in islice(file, 2 * _TINY_PROMPTS if bench.tiny else None)]
        num_held_out = _TINY_PROMPTS if bench.tiny else _NUM_HELD_OUT
        names = [schema["function"]["name"] for schema in Toolbox.from_config(tools).schemas()]
        made = [_prompt(row, names) for row in rows]
        self.held_out, self.train = made[:num_held_out], made[num_held_out:]

    def answered_by(self, teacher: str, config: DistillConfig, bench: Bench) -> list[JsonObject]:
        """Conversations of the teacher's, one for each of as many prompts as the demo pays for."""
        model = load_student(teacher, StudentConfig(parameters="full", dtype="float32"), bench.device, seed=0)
        settings = SamplingSettings(config.rollouts.max_tokens, config.rollouts.max_turns, temperature=1.0)
        places = model.causal_lm.config.max_position_embeddings
        sampler = Sampler(model.tokenizer, Toolbox.from_config(config.tools), settings, places)
        prompts = [prompt for prompt, _ in self.train[: config.rollouts.max_prompts]]
        with TransformersEngines(model, settings.max_concurrent).engine(0) as engine:
            trajectories = sampler.sample(engine, prompts, round_index=0)
        schemas = Toolbox.from_config(config.tools).schemas()
        return [{"messages": one.messages, "tools": schemas} for one in trajectories]


class Trainings:
    """Trainings as their jobs run them, one after the other.

    Args:
        folder: of this run's own.
        config: of student, trainings and tools.
        shop: what is trained and examined on.
        bench: the device, and whether it is a rehearsal.
    """

    def __init__(self, folder: Path, config: DistillConfig, shop: Shop, bench: Bench) -> None:
        self._folder = folder
        self._config = config
        self._shop = shop
        self._bench = bench

    def accuracy(self, model: str) -> float:
        """Return the share of held-out prompts that a model answers rightly, always with the same seeds."""
        student = load_student(model, self._config.student, self._bench.device, seed=0)
        limits = self._config.evaluation
        settings = SamplingSettings(limits.max_tokens, limits.max_turns, temperature=1.0, seed=1)
        places = student.causal_lm.config.max_position_embeddings
        sampler = Sampler(student.tokenizer, Toolbox.from_config(self._config.tools), settings, places)
        prompts, metadata = zip(*self._shop.held_out, strict=True)

        def sample(prompts: Sequence[Prompt]) -> list[SampledTrajectory]:
            return sampler.sample(Generator(student.causal_lm, max_batch=settings.max_concurrent), prompts, 0)

        generations = Generations(
            student, sample, prompts, {one.prompt_id: one for one in metadata},
            every_steps=1, work_dir=None, listener=NoListener(),
        )  # fmt: skip
        return generations.measure(0)["generation_accuracy"]

    def sft(self, start: str, rows: Sequence[JsonObject]) -> tuple[str, float]:
        """The student's folder and the seconds it took."""
        path = self._folder / "rows.jsonl"
        write_jsonl(path, list(rows))
        settings: dict[str, Any] = {"dataset_weight": 0.0, "sources": (SftSource(path=str(path)),)}
        if self._bench.tiny:
            settings |= {"num_epochs": 1, "batch_size": 4}
        config: SftConfig = self._config.sft.model_copy(update=settings)
        return self._run(start, method="sft", sft=config)

    def on_policy(self, start: str, teacher: str) -> tuple[str, float]:
        """The student's folder and the seconds it took."""
        prompts, metadata = zip(*self._shop.train, strict=True)
        files = self._folder / "prompts.jsonl", self._folder / "metadata.jsonl"
        for path, records in zip(files, (prompts, metadata), strict=True):
            write_jsonl(path, list(records))
        settings = {"num_steps": 2, "prompts_per_step": 4} if self._bench.tiny else {}
        config: OnPolicyConfig = self._config.on_policy.model_copy(update=settings)
        return self._run(
            start,
            method="on_policy",
            on_policy=config,
            prompts_file=files[0],
            metadata_file=files[1],
            teacher_ref=teacher,
            tools=self._config.tools,
        )

    def _run(self, start: str, *, method: str, **arguments: Any) -> tuple[str, float]:
        output = self._folder / f"{method} student"
        job = TrainJob(
            method=method,
            student_ref=start,
            student=self._config.student,
            work_dir=self._folder / method,
            output_dir=output,
            runtime=RuntimeConfig(store=str(self._folder), device=self._bench.device.type),
            **arguments,
        )
        started = time.perf_counter()
        run_job(job, NoProgress())
        return str(output), time.perf_counter() - started


def _prompt(row: JsonObject, tools: list[str]) -> tuple[Prompt, PromptMetadata]:
    messages: list[Message] = [{"role": "user", "content": row["prompt"]}]
    facts = row["metadata"]
    prompt = Prompt(prompt_id(messages, tools), messages, tools)
    return prompt, PromptMetadata(prompt.id, facts["expected_answer"], facts.get("tag"), "numeric", {})
