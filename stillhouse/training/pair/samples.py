"""Samples of the student on the prompts that a pair is measured on, and its own scores of them."""

import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import chain, compress

import numpy as np

from stillhouse.chat.next_turn import stop_token_ids
from stillhouse.errors import InputError
from stillhouse.inference.scoring.scores import SequenceScores
from stillhouse.store.records import read_metadata, read_prompts
from stillhouse.training.job import TrainJob
from stillhouse.training.model.student import Student
from stillhouse.training.on_policy.load import load_sampler
from stillhouse.training.on_policy.sampling.sampler import SamplingSettings
from stillhouse.training.on_policy.sampling.transformers import TransformersEngines
from stillhouse.training.on_policy.teachers.packed import ScoringSettings
from stillhouse.training.on_policy.teachers.self_teacher import SelfTeacher
from stillhouse.training.pair.finding import TOP_K
from stillhouse.training.trajectories import SampledTrajectory
from stillhouse.types import JsonObject, PromptMetadata, Sample


@dataclass(frozen=True, slots=True)
class StudentSamples:
    """One trajectory of each prompt, in the order of the prompts; lists are aligned."""

    student: Student
    metadata: Mapping[str, PromptMetadata]
    """By prompt id; may lack any."""
    trajectories: list[SampledTrajectory]
    requests: list[Sample]
    """The trajectories as the student itself reads them."""
    scores: list[SequenceScores]
    """The student's own, with its most probable tokens."""
    ends: frozenset[int]
    """Its end-of-turn tokens."""

    def part(self, kept: Sequence[bool]) -> "StudentSamples":
        """Return the samples that are kept."""
        return replace(
            self,
            trajectories=list(compress(self.trajectories, kept)),
            requests=list(compress(self.requests, kept)),
            scores=list(compress(self.scores, kept)),
        )


def sample_student(job: TrainJob, student: Student) -> tuple[StudentSamples, JsonObject]:
    """Sample the job's prompts by its settings; return how much that was and how long it took too.

    Raises:
        InputError: no prompt leaves room for an answer.
        StillhouseError: of the kinds that the sampler names.
    """
    config = job.on_policy
    assert config is not None
    assert job.prompts_file is not None
    metadata = read_metadata(job.metadata_file) if job.metadata_file else {}
    prompts = list(read_prompts(job.prompts_file))
    sampler = load_sampler(job, SamplingSettings.of(config), student, metadata)
    started = time.monotonic()
    with TransformersEngines(student, config.max_concurrent).engine(0) as engine:
        sampled = sampler.sample(engine, prompts, round_index=0)
    trajectories = [trajectory for trajectory in sampled if trajectory.num_turns]
    if not trajectories:
        raise InputError(f"none of the {len(prompts)} prompts leaves room for an answer; shorten them")
    ended = time.monotonic()
    scoring = ScoringSettings("student", 0.0, config.temperature, config.trainer.microbatch_tokens, TOP_K)
    itself = SelfTeacher(scoring, student, nullcontext)
    requests = [Sample(one.token_ids, one.loss_mask, one.prompt_id) for one in trajectories]
    scores = itself.start(requests).result()
    ends = stop_token_ids(student.tokenizer, student.causal_lm.generation_config)
    facts = {
        "rows": len(trajectories),
        "sampled_tokens": sum(sum(one.loss_mask) for one in trajectories),
        "input_tokens": sum(len(one.token_ids) for one in trajectories),
        "sampling_s": ended - started,
        "forward_s": time.monotonic() - ended,
        "scoring_s": 0.0,
    }
    return StudentSamples(student, metadata, trajectories, requests, scores, ends), facts


def sampled(scores: Sequence[SequenceScores]) -> np.ndarray:
    """Return the log-probabilities [N] of the sampled tokens, requests concatenated."""
    return np.array(list(chain.from_iterable(one.logprobs for one in scores)))


def end_places(requests: Sequence[Sample], ends: frozenset[int]) -> np.ndarray:
    """Return for each sampled token [N] if it ends a turn."""
    tokens = chain.from_iterable(compress(request.token_ids, request.loss_mask) for request in requests)
    return np.array([token in ends for token in tokens], dtype=bool)
