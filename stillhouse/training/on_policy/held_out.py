"""Measurements on held-out prompts during on-policy distillation."""

from collections.abc import Sequence
from contextlib import ExitStack

from stillhouse.errors import InputError
from stillhouse.serving.generator import Generator
from stillhouse.store.records import read_metadata, read_prompts
from stillhouse.tools.toolbox import Toolbox
from stillhouse.training.job import TrainJob
from stillhouse.training.loop.trainer import Measurement
from stillhouse.training.model.student import Student
from stillhouse.training.monitoring.generations import Generations
from stillhouse.training.monitoring.metrics import Listener
from stillhouse.training.on_policy.load import load_sampler
from stillhouse.training.on_policy.rewards import RewardScorer
from stillhouse.training.on_policy.sampling.sampler import SamplingSettings
from stillhouse.training.trajectories import SampledTrajectory
from stillhouse.types import Prompt


def held_out_generations(
    job: TrainJob, student: Student, listener: Listener, resources: ExitStack
) -> list[Measurement]:
    """Return the measurement that `trainer.generate_every_steps` asks for, if any; the student samples in this process.

    Args:
        job: names held-out prompts and rewards.
        student: measured.
        listener: gets the answers as a table.
        resources: closes the rewards' sandbox.

    Raises:
        ConfigError: a tool or reward cannot be loaded.
        InputError: no prompt was held out.
    """
    config = job.on_policy
    if config is None or (every_steps := config.trainer.generate_every_steps) is None:
        return []
    assert job.held_out_file is not None
    assert job.held_out_metadata_file is not None
    prompts = list(read_prompts(job.held_out_file))
    if not prompts:
        raise InputError(
            f"on_policy.trainer.generate_every_steps = {every_steps}: {job.held_out_file} holds no prompt to measure "
            "on; raise prompts.held_out_fraction, or leave it out"
        )
    count = min(config.trainer.num_generations, len(prompts))
    spread = [prompts[place * len(prompts) // count] for place in range(count)]
    metadata = read_metadata(job.held_out_metadata_file)
    max_context = student.max_context or job.student.max_length
    settings = SamplingSettings(
        config.max_tokens, config.max_turns, max_concurrent=config.max_concurrent, seed=config.trainer.seed
    )
    sampler = load_sampler(job, settings, student, Toolbox.from_config(job.tools), max_context, metadata)
    scorer = resources.enter_context(RewardScorer(job.tools)) if job.tools.rewards_file else None

    def sample(prompts: Sequence[Prompt]) -> list[SampledTrajectory]:
        # Always round 0: every measurement has the same seeds.
        generator = Generator(student.causal_lm, max_batch=config.max_concurrent)
        return sampler.sample(generator, prompts, round_index=0)

    def rewards(trajectories: Sequence[SampledTrajectory]) -> list[float | None]:
        assert scorer is not None
        return [reward.total for reward in scorer.score(trajectories, metadata)]

    return [
        Generations(
            student,
            sample,
            spread,
            metadata,
            every_steps=every_steps,
            work_dir=job.work_dir,
            listener=listener,
            rewards=rewards if scorer else None,
        )
    ]
