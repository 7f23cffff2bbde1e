"""Answers measured while a student is trained, to validation rows of SFT or to held-out prompts."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Final

from stillhouse.config import OnPolicyConfig, SftConfig
from stillhouse.dataset.read import read_rows
from stillhouse.errors import ConfigError, InputError
from stillhouse.serving.generator import Generator
from stillhouse.store.records import read_metadata, read_prompts
from stillhouse.training.job import TrainJob
from stillhouse.training.model.student import Student
from stillhouse.training.monitoring.generations import Generations
from stillhouse.training.monitoring.metrics import Listener
from stillhouse.training.on_policy.load import load_sampler
from stillhouse.training.on_policy.rewards import RewardScorer
from stillhouse.training.on_policy.sampling.sampler import SamplingSettings
from stillhouse.training.ranks import Ranks
from stillhouse.training.sft.row_forms import validation_prompts
from stillhouse.training.trajectories import SampledTrajectory
from stillhouse.types import Prompt, PromptMetadata

_MAX_TURNS: Final = 10
"""Completions of an answer in SFT's measurements; those of on-policy distillation have as many as its samples."""

Asked = tuple[Sequence[Prompt], Mapping[str, PromptMetadata]]


def load_generations(
    job: TrainJob, student: Student, ranks: Ranks, listener: Listener, resources: ExitStack
) -> Generations | None:
    """Return the measurement that `trainer.generate_every_steps` asks for; the student samples in this process.

    `listener` gets the answers as a table, and `resources` closes the rewards' sandbox.

    Raises:
        ConfigError: a tool or reward cannot be loaded, or no validation row has an expected answer.
        InputError: no prompt was held out.
    """
    every_steps = job.trainer.generate_every_steps
    if every_steps is None:
        return None
    scorer: RewardScorer | None = None
    config = job.on_policy
    known: Mapping[str, PromptMetadata] = {}
    if config is None:
        assert job.sft is not None
        prompts, metadata = _validation_rows(job, job.sft)
        settings = SamplingSettings(job.student.max_length, _MAX_TURNS)
    else:
        prompts, metadata = _held_out(job, config)
        known = metadata
        settings = SamplingSettings(
            config.max_tokens, config.max_turns, max_concurrent=config.max_concurrent, seed=config.trainer.seed
        )
        if job.tools.rewards_file:
            scorer = resources.enter_context(RewardScorer(job.tools))
    sampler = load_sampler(job, settings, student, known)

    def sample(prompts: Sequence[Prompt]) -> list[SampledTrajectory]:
        # Always round 0: every measurement has the same seeds.
        generator = Generator(student.causal_lm, max_batch=settings.max_concurrent)
        return sampler.sample(generator, prompts, round_index=0)

    def rewards(trajectories: Sequence[SampledTrajectory]) -> list[float | None]:
        assert scorer is not None
        return [reward.total for reward in scorer.score(trajectories, metadata)]

    return Generations(
        student,
        sample,
        prompts,
        metadata,
        every_steps=every_steps,
        work_dir=job.work_dir if ranks.is_first else None,
        listener=listener,
        rewards=rewards if scorer else None,
    )


def _validation_rows(job: TrainJob, config: SftConfig) -> Asked:
    rows = [] if job.dataset_folder is None else read_rows(job.dataset_folder, "validation")
    prompts, metadata = validation_prompts(rows, config.trainer.num_generations)
    if not prompts:
        raise ConfigError(
            f"sft.trainer.generate_every_steps = {config.trainer.generate_every_steps}: no validation row of the "
            "dataset has an expected answer to verify. Raise dataset.validation_fraction, give prompts expected "
            "answers, or set it to null"
        )
    return prompts, metadata


def _held_out(job: TrainJob, config: OnPolicyConfig) -> Asked:
    assert job.held_out_file is not None
    assert job.held_out_metadata_file is not None
    prompts = list(read_prompts(job.held_out_file))
    if not prompts:
        raise InputError(
            f"on_policy.trainer.generate_every_steps = {config.trainer.generate_every_steps}: {job.held_out_file} "
            "holds no prompt to measure on; raise prompts.held_out_fraction, or leave it out"
        )
    count = min(config.trainer.num_generations, len(prompts))
    spread = [prompts[place * len(prompts) // count] for place in range(count)]
    return spread, read_metadata(job.held_out_metadata_file)
