"""On-policy distillation put together from its parts."""

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from stillhouse.config import OnPolicyConfig, ToolsConfig
from stillhouse.errors import ConfigError
from stillhouse.store.records import read_metadata, read_prompts
from stillhouse.tools.toolbox import Toolbox
from stillhouse.training.job import TrainJob
from stillhouse.training.on_policy.batches.maker import BatchMaker
from stillhouse.training.on_policy.batches.queue import BatchQueue
from stillhouse.training.on_policy.loss.objective import Objective
from stillhouse.training.on_policy.method import OnPolicy
from stillhouse.training.on_policy.rewards import Rewards
from stillhouse.training.on_policy.sampling.engine import Engines
from stillhouse.training.on_policy.sampling.sampler import Sampler
from stillhouse.training.on_policy.sampling.transformers import TransformersEngines
from stillhouse.training.on_policy.sampling.vllm import VllmEngines
from stillhouse.training.on_policy.teachers.load import Averaged, load_teachers
from stillhouse.training.on_policy.watching.trajectory_page import PAGES_FOLDER, TrajectoryPages
from stillhouse.training.student.student import Student
from stillhouse.training.watching.listener import Listener
from stillhouse.types import PromptMetadata


def load_on_policy(
    job: TrainJob, student: Student, listener: Listener, averaged: Averaged, resources: ExitStack
) -> OnPolicy:
    """The method of `job`, with all that samples, scores and rewards.

    Args:
        job: names prompts, teachers and tools.
        student: sampled from and trained.
        listener: gets the pages of trajectories.
        averaged: within its block the student has its running mean for weights.
        resources: closes what is opened here.

    Raises:
        ConfigError: there are fewer prompts than a batch takes, a prompt has no teacher, or a teacher, the tools or the
            rewards cannot be had.
        TrainingError: a teacher means other tokens by the same ids.
        EndpointError: a server does not answer.
    """
    config = job.on_policy
    assert config is not None
    assert job.prompts_file is not None
    prompts = list(read_prompts(job.prompts_file))
    if config.agentic == "off":
        prompts = [replace(prompt, tools=[]) for prompt in prompts]
    metadata = read_metadata(job.metadata_file) if job.metadata_file else {}
    if len(prompts) < config.prompts_per_step:
        raise ConfigError(
            f"on_policy.prompts_per_step = {config.prompts_per_step}: expected at most the number of training "
            f"prompts, {len(prompts)}"
        )
    teachers = load_teachers(config, student, default_ref=job.teacher_ref, work_dir=job.work_dir, averaged=averaged)
    resources.callback(teachers.close)
    teachers.check(prompts, metadata)
    objective = Objective(config, list(teachers.by_name), teachers.labels(prompts, metadata))
    engines, served_context = _engines(config, student, job.work_dir)
    resources.callback(engines.close)
    places = (student.causal_lm.config.max_position_embeddings, teachers.max_context, served_context)
    max_context = min(count for count in places if count is not None)
    pages = TrajectoryPages(student.tokenizer, job.work_dir / PAGES_FOLDER, listener, config)
    batches = job.work_dir / "rollouts"
    maker = BatchMaker(
        prompts,
        metadata,
        _sampler(job, config, student, max_context, metadata),
        engines,
        teachers,
        resources.enter_context(Rewards(job.tools)),
        objective,
        config,
        pages.show,
        groups=None if _samples_the_same_again(config, student) else batches,
    )
    queue = BatchQueue(
        maker.begin,
        batches,
        num_batches=-(-config.num_steps // config.updates_per_batch),
        max_staleness=config.max_staleness,
        in_background=_may_sample_in_background(config),
    )
    resources.callback(queue.close)
    return OnPolicy(student, objective, queue, teachers, config, job.work_dir / "checkpoints")


def _engines(config: OnPolicyConfig, student: Student, work_dir: Path) -> tuple[Engines, int | None]:
    """What samples, and the most tokens of a sequence that it holds, where it says so."""
    if config.engine == "vllm":
        served = VllmEngines(student, config, work_dir / "served_weights")
        return served, served.max_context
    return TransformersEngines(student, config.max_concurrent), None


def _sampler(
    job: TrainJob,
    config: OnPolicyConfig,
    student: Student,
    max_context: int,
    metadata: dict[str, PromptMetadata],
) -> Sampler:
    if config.agentic == "off":
        config = config.model_copy(update={"max_turns": 1})
    toolbox = Toolbox.from_config(ToolsConfig() if config.agentic == "off" else job.tools)
    if config.agentic == "on" and not toolbox.schemas():
        raise ConfigError(
            "on_policy.agentic is `on`, but no tool is configured: name some in tools.builtin, tools.file or tools.mcp"
        )
    return Sampler(student.tokenizer, toolbox, config, max_context, job.system_prompt, metadata)


def _samples_the_same_again(config: OnPolicyConfig, student: Student) -> bool:
    return config.engine == "transformers" and student.device.type == "cpu"


def _may_sample_in_background(config: OnPolicyConfig) -> bool:
    """Whether making a batch leaves the student alone once its weights have been handed over."""
    return config.engine != "transformers" and all(one.kind not in ("base", "ema") for one in config.teachers)
