"""This project's trainer with its on-policy method, put together as a training job puts them together.

    python -m benchmarks.on_policy.sides.ours JOB.json RECORD.json

Settings are fields of `OnPolicyConfig`. What is added here ends completions where their prompts say, or replays those
that the other side sampled.
"""

import json
import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
import torch

from benchmarks.frame.training import Mark
from benchmarks.on_policy.sides.job import OnPolicyJob, OnPolicyRecord, Trajectory, clock, num_sampled
from benchmarks.on_policy.workload import wanted_tokens
from stillhouse.config import OnPolicyConfig, RuntimeConfig, StudentConfig, ToolsConfig
from stillhouse.progress.state import NoProgress
from stillhouse.serving.generation import Generation, GenerationRequest
from stillhouse.tools.toolbox import Toolbox
from stillhouse.training.head.scores import Reference, TopReference
from stillhouse.training.loop.assembly import build_trainer
from stillhouse.training.loop.method import Batch
from stillhouse.training.model.load import load_student
from stillhouse.training.model.student import Student
from stillhouse.training.monitoring.metrics import NoListener
from stillhouse.training.on_policy.algorithms import algorithm_of
from stillhouse.training.on_policy.batches.queue import BatchQueue
from stillhouse.training.on_policy.batches.shared import SharedBatches
from stillhouse.training.on_policy.batches.source import RolloutSource
from stillhouse.training.on_policy.method import OnPolicy
from stillhouse.training.on_policy.monitoring.activity import Activity
from stillhouse.training.on_policy.rewards import RewardScorer
from stillhouse.training.on_policy.sampling.engine import SamplingEngine, SamplingEngines
from stillhouse.training.on_policy.sampling.sampler import Sampler, SamplingSettings
from stillhouse.training.on_policy.sampling.transformers import TransformersEngines
from stillhouse.training.on_policy.step import BatchMaker, Objective
from stillhouse.training.on_policy.teachers.load import load_teachers
from stillhouse.training.on_policy.teachers.router import TeacherRouter
from stillhouse.training.ranks import Ranks
from stillhouse.training.repeatability import use_fast_float32_products
from stillhouse.types import Prompt, Sample

logger = logging.getLogger(__name__)

_REWARDS: Final = str(Path(__file__).with_name("rewards.py"))


class AsAsked:
    """An engine whose completions have the tokens that their prompts ask for."""

    def __init__(self, engine: SamplingEngine) -> None:
        self._engine = engine
        self.step = engine.step

    def submit(self, request: GenerationRequest) -> int:
        """See `SamplingEngine`."""
        return self._engine.submit(replace(request, max_tokens=wanted_tokens(request.prompt_ids)))


class Sampling:
    """Engines over the student."""

    def __init__(self, engines: TransformersEngines) -> None:
        self._engines = engines
        self.close = engines.close
        self.max_context = engines.max_context

    @contextmanager
    def engine(self, version: int) -> Iterator[SamplingEngine]:
        """See `SamplingEngines`."""
        with self._engines.engine(version) as engine:
            yield AsAsked(engine)


class Replay:
    """Engines that give what was sampled elsewhere, step by step, with log-probabilities that nothing depends on."""

    max_context: int | None = None

    def __init__(self, steps: Sequence[Sequence[Trajectory]]) -> None:
        self._steps = steps

    def engine(self, version: int) -> AbstractContextManager[SamplingEngine]:
        """See `SamplingEngines`."""
        return nullcontext(ReplayedStep(self._steps[version]))

    def close(self) -> None:
        """See `SamplingEngines`."""


class ReplayedStep:
    """An engine that knows the completions of each prompt of one step."""

    def __init__(self, trajectories: Sequence[Trajectory]) -> None:
        self._completions: dict[tuple[int, ...], list[list[int]]] = {}
        for prompt_ids, completion_ids in trajectories:
            self._completions.setdefault(tuple(prompt_ids), []).append(completion_ids)
        self._ready: list[tuple[int, Generation]] = []

    def submit(self, request: GenerationRequest) -> int:
        """See `SamplingEngine`."""
        ids = self._completions[tuple(request.prompt_ids)].pop(0)
        handle = len(self._ready)
        logprobs = [0.0] * len(ids)
        self._ready.append((handle, Generation(ids, logprobs, "stop" if ids[-1] in request.stop_ids else "length")))
        return handle

    def step(self) -> list[tuple[int, Generation]]:
        """See `SamplingEngine`."""
        ready, self._ready = self._ready, []
        return ready


class Profiler(Protocol):
    """Profiles the training part of a step."""

    def start(self) -> None:
        """Begins to record."""

    def figures(self) -> dict[str, Any]:
        """Ends recording."""


class Watched(OnPolicy):
    """The method, which notes what was sampled and how long sampling and the teacher's passes take."""

    def __init__(self, record: OnPolicyRecord, profiler: Profiler | None, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._record = record
        self._profiler = profiler

    def batch(self, step: int) -> Batch:
        """See `Method`."""
        started = clock()
        batch = super().batch(step)
        sync_s = batch.metrics["sync_s"]
        self._record.seconds.append({"sample": clock() - started - sync_s, "score": 0.0, "sync": sync_s})
        logger.info("step %d: sampled for %.1f s", step, self._record.seconds[-1]["sample"])
        self._record.trajectories.append([_trajectory(sample) for sample in batch.samples])
        if self._profiler is not None and step == self.num_steps - 1:
            self._profiler.start()
        return batch

    def reference(self, samples: Sequence[Sample]) -> Reference | TopReference | None:
        """See `TokenLoss`."""
        started = clock()
        reference = super().reference(samples)
        self._record.seconds[-1]["score"] += clock() - started
        return reference


class Enough(Exception):
    """Every step is done; what a trainer does at its end would write all weights."""


class Marks(NoListener):
    """Marks the end of each step, and notes its loss.

    Raises:
        Enough: it was the last one.
    """

    def __init__(self, record: OnPolicyRecord, num_steps: int, profiler: Profiler | None) -> None:
        self._record = record
        self._num_steps = num_steps
        self._profiler = profiler

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        """A step has ended."""
        if "on_policy/loss" in metrics:
            self._record.losses.append(metrics["on_policy/loss"])
            self._record.gradient_norms.append(metrics["on_policy/details/grad_norm"])
            clock()
            self._record.marks.append(Mark.now(sum(map(num_sampled, self._record.trajectories))))
        if step == self._num_steps:
            if self._profiler is not None:
                self._record.profile = self._profiler.figures()
            raise Enough


def main(job: OnPolicyJob) -> OnPolicyRecord:
    """Trains."""
    torch.set_num_threads(job.num_threads)
    # As every training job on a CPU does.
    use_fast_float32_products()
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    student_config = StudentConfig(parameters="full", dtype=job.precision)
    student = load_student(f"{job.folder}/student", student_config, torch.device("cpu"), seed=0)
    settings = {
        "learning_rate": job.learning_rate,
        "num_steps": job.num_steps,
        "prompts_per_step": job.prompts_per_step,
        "group_size": job.group_size,
        "trainer": {"weight_decay": job.weight_decay, "schedule": "cosine"},
        **job.settings,
    }
    if job.replay and job.group_size > 1:
        # What the other side sampled comes without log-probabilities. The gradient is the same without a ratio of 1.
        settings["loss_fn"] = "reinforce"
    work_dir = Path(job.scratch)
    config = distillation_config(settings) if job.group_size == 1 else grpo_config(settings)
    teachers = load_teachers(
        config,
        student,
        default_ref=f"{job.folder}/teacher",
        averaged=nullcontext,
        runtime=RuntimeConfig(store=str(work_dir)),
    )
    replayed = json.loads(Path(job.replay).read_text(encoding="utf-8")) if job.replay else None
    return train(student, teachers, job.rows(), config, work_dir, replayed)


def distillation_config(settings: Mapping[str, Any]) -> OnPolicyConfig:
    """The exact reverse KL, and what else both sides agree on."""
    return _config({"algorithm": "divergence", **settings})


def grpo_config(settings: Mapping[str, Any]) -> OnPolicyConfig:
    """Rewards alone, compared within the completions of a prompt; every token weighs the same."""
    return _config({"algorithm": "rewards", **settings})


def _config(settings: Mapping[str, Any]) -> OnPolicyConfig:
    common = {"betas": (0.9, 0.999), "checkpoint_every_steps": settings["num_steps"], "log_every_steps": 1}
    return OnPolicyConfig.model_validate({**settings, "trainer": {**common, **settings["trainer"]}})


def train(
    student: Student,
    teachers: TeacherRouter,
    rows: Sequence[Mapping[str, Any]],
    config: OnPolicyConfig,
    work_dir: Path,
    replayed: Sequence[Sequence[Trajectory]] | None = None,
    profiler: Profiler | None = None,
) -> OnPolicyRecord:
    """A training by the method as `load_on_policy` makes it, but for the engines.

    Args:
        student: trained.
        teachers: the one that scores.
        rows: prompts.
        config: of the method.
        work_dir: of this training alone.
        replayed: trained on instead of what the student samples, step by step; None samples.
        profiler: of the last step, which it slows down, from where its batch is there; None profiles nothing.
    """
    record = OnPolicyRecord()
    sampled: SamplingEngines = Sampling(TransformersEngines(student, config.max_concurrent))
    ranks = Ranks.single(student.device)
    places = teachers.max_context or student.causal_lm.config.max_position_embeddings
    with ExitStack() as resources:
        algorithm = algorithm_of(config)
        objective = Objective(algorithm, list(teachers.by_name))
        rewards_file = None if config.needs_teacher else _REWARDS
        rewards = resources.enter_context(RewardScorer(ToolsConfig(rewards_file=rewards_file)))
        source = RolloutSource(
            [Prompt(row["id"], row["messages"], tools=[]) for row in rows],
            {},
            Sampler(student.tokenizer, Toolbox.from_config(ToolsConfig()), SamplingSettings.of(config), places),
            teachers,
            rewards,
            config,
            ranks,
            share=slice(None),
            is_scored_ahead=objective.is_scored_ahead,
        )
        engines = sampled if replayed is None else Replay(replayed)
        maker = BatchMaker(source, engines, objective, lambda *_: None)
        queue = BatchQueue(maker.begin, work_dir / "rollouts")
        batches = SharedBatches(ranks, maker.begin, queue)
        checkpoints = work_dir / "checkpoints"
        activity = Activity(NoProgress(), OnPolicy.name, config.num_steps)
        method = Watched(
            record, profiler, student, objective, batches, teachers, rewards, config, checkpoints, {}, activity, ranks
        )
        marks = Marks(record, config.num_steps, profiler)
        trainer = build_trainer(method, student, config, work_dir=work_dir, identity={}, listener=marks)
        with suppress(Enough):
            trainer.run()
    return record


def _trajectory(sample: Sample) -> Trajectory:
    ids, first = np.asarray(sample.token_ids).tolist(), np.flatnonzero(sample.loss_mask)[0]
    return ids[:first], ids[first:]


if __name__ == "__main__":
    main(OnPolicyJob.read(Path(sys.argv[1]))).write(Path(sys.argv[2]))
