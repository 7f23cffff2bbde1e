from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from stillhouse.config import OnPolicyConfig, ToolsConfig
from stillhouse.inference.scoring.scores import SequenceScores
from stillhouse.serving.generation import Generation, GenerationRequest
from stillhouse.serving.generator import Generator
from stillhouse.tools.toolbox import Toolbox
from stillhouse.training.model.student import Student
from stillhouse.training.on_policy.algorithms import algorithm_of
from stillhouse.training.on_policy.batches.source import RolloutSource
from stillhouse.training.on_policy.rewards import RewardScorer
from stillhouse.training.on_policy.sampling.sampler import Sampler, SamplingSettings
from stillhouse.training.on_policy.sampling.transformers import TransformersEngines
from stillhouse.training.on_policy.step import BatchMaker, Objective
from stillhouse.training.on_policy.teachers.packed import finished
from stillhouse.training.on_policy.teachers.router import Route, TeacherRouter
from stillhouse.training.ranks import Ranks
from stillhouse.types import Prompt, PromptMetadata, Sample


class Interrupted(Exception):
    pass


class CountingEngine:
    """The real engine; keeps its requests, and may break down after some completions."""

    def __init__(self, engine: Generator, requests: list[GenerationRequest], breaks_after: int | None) -> None:
        self._engine, self._requests, self._left = engine, requests, breaks_after

    def submit(self, request: GenerationRequest) -> int:
        self._requests.append(request)
        return self._engine.submit(request)

    def step(self) -> list[tuple[int, Generation]]:
        if self._left is not None and self._left <= 0:
            raise Interrupted
        done = self._engine.step()
        if self._left is not None:
            self._left -= len(done)
        return done


class CountingEngines:
    max_context: int | None = None

    def __init__(self, student: Student, breaks_after: int | None = None) -> None:
        self._engines = TransformersEngines(student, max_concurrent=3)
        self._breaks_after = breaks_after
        self.requests: list[GenerationRequest] = []

    @contextmanager
    def engine(self, version: int) -> Iterator[CountingEngine]:
        with self._engines.engine(version) as engine:
            yield CountingEngine(engine, self.requests, self._breaks_after)

    def close(self) -> None:
        self._engines.close()


class NotingTeacher:
    """Finds everything equally probable; notes each call: completions requested so far, and ids of its prompts."""

    name = "teacher"
    kl_coef = 0.5
    max_context: int | None = None

    def __init__(self, engines: CountingEngines) -> None:
        self._engines = engines
        self.calls: list[tuple[int, list[str]]] = []

    def start(self, requests: Sequence[Sample]) -> Future[list[SequenceScores]]:
        self.calls.append((len(self._engines.requests), [request.prompt_id for request in requests]))
        return finished([SequenceScores([-1.0] * sum(request.loss_mask)) for request in requests])

    def close(self) -> None:
        pass


Made = tuple[BatchMaker, CountingEngines, NotingTeacher]
NewMaker = Callable[..., Made]


@pytest.fixture
def new_maker(student: Student, prompts: list[Prompt], metadata: dict[str, PromptMetadata]) -> NewMaker:
    """Makes makers of batches with their engines and their teacher."""

    def make(folder: Path | None = None, breaks_after: int | None = None) -> Made:
        config = OnPolicyConfig(
            prompts_per_step=4, group_size=2, num_substeps=2, max_concurrent=3, max_tokens=12, max_turns=1
        )
        engines = CountingEngines(student, breaks_after)
        teacher = NotingTeacher(engines)
        sampler = Sampler(student.tokenizer, Toolbox.from_config(ToolsConfig()), SamplingSettings.of(config), 512)
        router, rewards = TeacherRouter([Route("teacher", teacher)]), RewardScorer(ToolsConfig())
        objective = Objective(algorithm_of(config), ["teacher"])
        source = RolloutSource(
            prompts,
            metadata,
            sampler,
            router,
            rewards,
            config,
            Ranks.single(student.device),
            share=slice(None),
            is_scored_ahead=objective.is_scored_ahead,
            groups=folder,
        )
        maker = BatchMaker(source, engines, objective, lambda *shown: None)
        return maker, engines, teacher

    return make


def test_a_group_is_scored_while_others_are_still_to_be_sampled(new_maker: NewMaker) -> None:
    maker, engines, teacher = new_maker()
    batch = maker.begin(0, 7)
    assert len(engines.requests) == 8
    assert teacher.calls[0][0] < 8
    assert all(len(ids) == 2 and len(set(ids)) == 1 for _, ids in teacher.calls)
    assert batch.part.tolist() == [0] * 4 + [1] * 4
    assert batch.prompt_id[::2] == batch.prompt_id[1::2]
    assert len(set(batch.prompt_id)) == 4
    assert batch.teacher == ["teacher"] * 8
    assert set(batch.kl_coef) == {0.5}
    assert np.array_equal(batch.policy_version, 7 * batch.loss_mask)
    assert np.array_equal(batch.teacher_logprobs, -1.0 * batch.loss_mask)


def test_groups_that_had_ended_when_a_batch_broke_off_are_not_sampled_again(
    new_maker: NewMaker, tmp_path: Path
) -> None:
    uninterrupted = new_maker()[0].begin(0, 0)
    maker, _, teacher = new_maker(tmp_path, breaks_after=5)
    with pytest.raises(Interrupted):
        maker.begin(0, 0)
    ended = {prompt_id for _, ids in teacher.calls for prompt_id in ids}
    assert 0 < len(ended) < 4
    maker, engines, _ = new_maker(tmp_path)
    batch = maker.begin(0, 0)
    assert len(engines.requests) == 2 * (4 - len(ended))
    assert np.array_equal(batch.token_ids, uninterrupted.token_ids)
