"""Builds on-policy distillation from a job."""

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace

from stillhouse.config import OnPolicyConfig
from stillhouse.errors import ConfigError
from stillhouse.inference.retry import MAX_OUTAGE_S
from stillhouse.progress.state import NoProgress, Progress
from stillhouse.store.records import read_metadata, read_prompts
from stillhouse.tools.toolbox import Toolbox
from stillhouse.training.job import TrainJob
from stillhouse.training.model.student import Student
from stillhouse.training.monitoring.metrics import Listener
from stillhouse.training.on_policy.algorithms import algorithm_of
from stillhouse.training.on_policy.batches.queue import BatchQueue
from stillhouse.training.on_policy.batches.recorded import RecordedRollouts
from stillhouse.training.on_policy.batches.shared import SharedBatches, led
from stillhouse.training.on_policy.batches.source import RolloutSource
from stillhouse.training.on_policy.batches.stream import RolloutStream
from stillhouse.training.on_policy.method import OnPolicy
from stillhouse.training.on_policy.monitoring.activity import Activity
from stillhouse.training.on_policy.monitoring.shown_trajectories import SHOWN_FOLDER, ShownTrajectories
from stillhouse.training.on_policy.prompts import fitting, of_mixture
from stillhouse.training.on_policy.rewards import RewardScorer
from stillhouse.training.on_policy.sampling.engine import SampledByFirst, SamplingEngines
from stillhouse.training.on_policy.sampling.sampler import Sampler, SamplingSettings, beginning
from stillhouse.training.on_policy.sampling.started import with_sampler
from stillhouse.training.on_policy.sampling.transformers import TransformersEngines
from stillhouse.training.on_policy.sampling.vllm import VllmEngines
from stillhouse.training.on_policy.step import BatchMaker, Objective
from stillhouse.training.on_policy.teachers.load import Averaged, load_teachers
from stillhouse.training.on_policy.teachers.router import TeacherRouter
from stillhouse.training.ranks import Ranks
from stillhouse.types import JsonObject, PromptMetadata


@dataclass(frozen=True, slots=True)
class Loaded:
    """The source of a job's batches, and facts that are known before the first."""

    maker: BatchMaker
    facts: JsonObject
    """Coefficients of the teachers, and prompts left out."""
    num_batches_a_pass: int
    """Batches in which each prompt is there once, as near as their sizes allow."""


def load_on_policy(
    job: TrainJob,
    student: Student,
    listener: Listener,
    averaged: Averaged,
    resources: ExitStack,
    progress: Progress | None = None,
    ranks: Ranks | None = None,
) -> OnPolicy:
    """Return the method of `job`: with sampler, teachers and rewards, or with the rollouts recorded with them.

    `listener` gets the files of shown trajectories, within `averaged` the student has its EMA weights, and `resources`
    closes everything opened here. Collective; `ranks` None is this process alone.

    Raises:
        ConfigError: there are fewer prompts than a batch needs, or a teacher, tool or reward cannot be loaded.
        InputError: prompts leave no room for an answer, have no teacher, or lack metadata that a hint uses.
        TrainingError: a teacher does not share the student's vocabulary.
        EndpointError: a server does not answer.
        StoreError: the recorded rollouts cannot be read.
    """
    config = job.on_policy
    assert config is not None
    ranks = ranks or Ranks.single(student.device)
    activity = Activity(progress or NoProgress(), OnPolicy.name, config.num_steps)
    folder, checkpoints = job.work_dir / "rollouts", job.work_dir / "checkpoints"
    if job.rollouts_folder is not None:
        recorded = RecordedRollouts(job.rollouts_folder)
        algorithm = algorithm_of(config)
        objective = Objective(algorithm, list(recorded.facts["teachers"]), recorded.routes)
        queue = BatchQueue(recorded.begin, folder) if ranks.is_first else None
        batches = SharedBatches(ranks, recorded.begin, queue)
        teachers = TeacherRouter(())
        return OnPolicy(
            student, objective, batches, teachers, None, config, checkpoints, recorded.facts, activity, ranks
        )
    loaded = load_maker(job, student, listener, averaged, resources, activity, ranks)
    maker, source = loaded.maker, loaded.maker.source
    queue = None
    if ranks.is_first:
        if source.config.max_staleness:
            parts = (source.sampler, maker.engines, source.config, source.prompts_of, source.prepare)
            stream = RolloutStream(*parts, folder)
            resources.callback(stream.close)
            maker = replace(maker, source=replace(source, stream=stream))
        queue = BatchQueue(led(ranks, maker.begin), folder)
    batches = SharedBatches(ranks, maker.begin, queue)
    return OnPolicy(
        student,
        maker.objective,
        batches,
        source.teachers,
        source.rewards,
        source.config,
        checkpoints,
        loaded.facts,
        activity,
        ranks,
    )


def load_maker(
    job: TrainJob,
    student: Student,
    listener: Listener,
    averaged: Averaged,
    resources: ExitStack,
    activity: Activity,
    ranks: Ranks,
) -> Loaded:
    """Return sampler, teachers and rewards of `job`; arguments and errors as in `load_on_policy`."""
    config = job.on_policy
    assert config is not None
    assert job.prompts_file is not None
    metadata = read_metadata(job.metadata_file) if job.metadata_file else {}
    prompts = of_mixture(list(read_prompts(job.prompts_file)), metadata, config)
    teachers = load_teachers(
        config,
        student,
        default_ref=job.teacher_ref,
        averaged=averaged,
        runtime=job.runtime,
        budget=job.budget,
        say=activity.wait,
        ranks=ranks,
    )
    resources.callback(teachers.close)
    toolbox = Toolbox.from_config(job.tools)
    teachers.check(prompts, metadata, lambda prompt: beginning(prompt, toolbox, job.system_prompt))
    # After all that this process itself has on a GPU, whose free memory it measures.
    started, on_gpu = None, ranks.device.type == "cuda"
    if ranks.is_first:
        started = with_sampler(config, job, student, resources, activity.wait, on_gpu=on_gpu)
    config, sleeps = ranks.broadcast(started)
    if config.max_staleness and config.engine_url is None:
        raise ConfigError(
            f"on_policy.max_staleness = {config.max_staleness} has a server sample while the student trains, and here "
            "the training process samples; set it to 0, or have vLLM sample: `make vllm`, or on_policy.engine_url"
        )
    algorithm = algorithm_of(config)
    objective = Objective(algorithm, list(teachers.by_name), teachers.labels(prompts, metadata))
    engines = _engines(config, student, job, activity, ranks, sleeps=sleeps)
    resources.callback(engines.close)
    contexts = (student.max_context, teachers.max_context, engines.max_context)
    known = [length for length in contexts if length is not None]
    max_context = ranks.broadcast(min(known, default=job.student.max_length))
    shown = ShownTrajectories(student.tokenizer, job.work_dir / SHOWN_FOLDER, listener, algorithm)
    batches = job.work_dir / "rollouts"
    # Without a coefficient rewards are reported, and no reason to stop.
    failure_budget = job.runtime.failure_budget if config.reward_coef > 0.0 else 1.0
    rewards = resources.enter_context(RewardScorer(job.tools, failure_budget))
    settings = SamplingSettings.of(config, ranks.broadcast(teachers.num_best))
    sampler = load_sampler(job, settings, student, metadata, max_context, toolbox)
    used = fitting(prompts, metadata, sampler, config)
    source = RolloutSource(
        used,
        metadata,
        sampler,
        teachers,
        rewards,
        config,
        ranks,
        _share(config, ranks),
        objective.is_scored_ahead,
        # On a CPU, sampling a batch again gives the same bits.
        groups=None if config.engine_url is None and ranks.device.type == "cpu" else batches,
    )
    show = shown.show if ranks.is_first else lambda table, trajectories, rewards: None
    maker = BatchMaker(source, engines, objective, show)
    teacher_facts = {name: teacher.kl_coef for name, teacher in teachers.by_name.items()}
    dropped = {} if config.max_prompt_tokens is None else {"dropped_prompts": len(prompts) - len(used)}
    return Loaded(maker, {"teachers": teacher_facts, **dropped}, max(1, len(used) // config.prompts_per_step))


def _share(config: OnPolicyConfig, ranks: Ranks) -> slice:
    """Return the prompts of a batch that this process samples: the first has a server sample all of them."""
    if config.engine_url is None:
        return slice(ranks.rank, None, ranks.size)
    return slice(None) if ranks.is_first else slice(0)


def _engines(
    config: OnPolicyConfig, student: Student, job: TrainJob, activity: Activity, ranks: Ranks, *, sleeps: bool
) -> SamplingEngines:
    if config.engine_url is not None and not ranks.is_first:
        return SampledByFirst(student, ranks)
    if config.engine_url is not None:
        folder = job.work_dir / "served_weights"
        say = activity.wait
        return VllmEngines(student, config, folder, max_outage_s=MAX_OUTAGE_S, say=say, sleeps=sleeps, ranks=ranks)
    return TransformersEngines(student, config.max_concurrent)


def load_sampler(
    job: TrainJob,
    settings: SamplingSettings,
    student: Student,
    metadata: Mapping[str, PromptMetadata],
    max_context: int | None = None,
    toolbox: Toolbox | None = None,
) -> Sampler:
    """Return the sampler of a job, by `settings`; its sequences are as long as the student reads, or `max_context`."""
    return Sampler(
        student.tokenizer,
        toolbox or Toolbox.from_config(job.tools),
        settings,
        max_context or student.max_context or job.student.max_length,
        job.system_prompt,
        metadata,
        job.rules,
        student.causal_lm.generation_config,
    )
