"""What the student samples of the prompts a pair is measured on, and how it scores that itself."""

import time
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass

from stillhouse.chat.next_turn import stop_token_ids
from stillhouse.errors import InputError
from stillhouse.store.records import read_metadata, read_prompts
from stillhouse.tools.toolbox import Toolbox
from stillhouse.training.job import TrainJob
from stillhouse.training.model.student import Student
from stillhouse.training.on_policy.load import load_sampler
from stillhouse.training.on_policy.masks import sampled_runs
from stillhouse.training.on_policy.sampling.sampler import SamplingSettings
from stillhouse.training.on_policy.sampling.transformers import TransformersEngines
from stillhouse.training.on_policy.teachers.packed import ScoringSettings
from stillhouse.training.on_policy.teachers.self_teacher import SelfTeacher
from stillhouse.training.on_policy.teachers.teacher import ScoreRequest, TeacherScores
from stillhouse.training.pair.agreement import sampled
from stillhouse.training.pair.figures import StudentFigures
from stillhouse.training.pair.rendering import prompt_opening
from stillhouse.training.pair.settings import TOP_K
from stillhouse.training.trajectories import SampledTrajectory
from stillhouse.types import PromptMetadata


@dataclass(frozen=True, slots=True)
class StudentSamples:
    """One trajectory of each prompt, in the order of the prompts; lists are aligned."""

    student: Student
    metadata: Mapping[str, PromptMetadata]
    """By prompt id; may lack any."""
    trajectories: list[SampledTrajectory]
    scores: list[TeacherScores]
    """The student's own, with its most probable tokens."""
    ends: frozenset[int]
    """Its end-of-turn tokens."""
    sampling_s: float
    forward_s: float

    def figures(self) -> StudentFigures:
        """Those of the student alone."""
        runs = [run for trajectory in self.trajectories for run in sampled_runs(trajectory)]
        requests = [request_of(trajectory) for trajectory in self.trajectories]
        return StudentFigures(
            num_trajectories=len(self.trajectories),
            num_tokens=sum(map(len, runs)),
            num_inputs=sum(len(trajectory.token_ids) for trajectory in self.trajectories),
            ended_share=sum(run[-1] in self.ends for run in runs) / len(runs),
            nll=float(-sampled(requests, self.scores).mean()),
            vocabulary=len(self.student.tokenizer.get_vocab()),
            opening=prompt_opening(self.student.tokenizer),
            sampling_s=self.sampling_s,
            forward_s=self.forward_s,
        )


def sample_student(job: TrainJob, student: Student) -> StudentSamples:
    """Samples the job's prompts by its settings.

    Raises:
        InputError: no prompt leaves room for an answer.
        StillhouseError: of the kinds that the sampler names.
    """
    config = job.on_policy
    assert config is not None
    assert job.prompts_file is not None
    metadata = read_metadata(job.metadata_file) if job.metadata_file else {}
    prompts = list(read_prompts(job.prompts_file))
    max_context = student.max_context or job.student.max_length
    sampler = load_sampler(
        job, SamplingSettings.of(config), student, Toolbox.from_config(job.tools), max_context, metadata
    )
    started = time.monotonic()
    with TransformersEngines(student, config.max_concurrent).engine(0) as engine:
        sampled_all = sampler.sample(engine, prompts, round_index=0)
    trajectories = [trajectory for trajectory in sampled_all if trajectory.num_turns]
    if not trajectories:
        raise InputError(f"none of the {len(prompts)} prompts leaves room for an answer; shorten them")
    ended = time.monotonic()
    scoring = ScoringSettings("student", 0.0, config.temperature, config.trainer.microbatch_tokens, TOP_K)
    itself = SelfTeacher(scoring, student, nullcontext)
    scores = itself.start([request_of(trajectory) for trajectory in trajectories]).result()
    return StudentSamples(
        student,
        metadata,
        trajectories,
        scores,
        stop_token_ids(student.tokenizer, student.causal_lm.generation_config),
        sampling_s=ended - started,
        forward_s=time.monotonic() - ended,
    )


def request_of(trajectory: SampledTrajectory) -> ScoreRequest:
    """A trajectory as the student itself reads it."""
    return ScoreRequest(trajectory.token_ids, trajectory.loss_mask, trajectory.prompt_id)
