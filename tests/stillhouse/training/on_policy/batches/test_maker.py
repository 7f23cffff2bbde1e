from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from stillhouse.config import OnPolicyConfig, StudentConfig, ToolsConfig
from stillhouse.serving.generation import Generation, GenerationRequest
from stillhouse.serving.generator import Generator
from stillhouse.tools.toolbox import Toolbox
from stillhouse.training.model.load import load_student
from stillhouse.training.model.student import Student
from stillhouse.training.on_policy.algorithms import choose_algorithm
from stillhouse.training.on_policy.batches.maker import BatchMaker
from stillhouse.training.on_policy.objective import Objective
from stillhouse.training.on_policy.rewards import RewardScorer
from stillhouse.training.on_policy.sampling.sampler import Sampler
from stillhouse.training.on_policy.sampling.transformers import TransformersEngines
from stillhouse.training.on_policy.teachers.router import Route, TeacherRouter
from stillhouse.training.on_policy.teachers.teacher import ScoreRequest, finished
from stillhouse.types import Prompt, PromptMetadata


class Interrupted(Exception):
    pass


class CountingEngine:
    """The real engine; counts what it is asked, and may break down after some completions."""

    def __init__(self, engine: Generator, request: list[GenerationRequest], breaks_after: int | None) -> None:
        self._engine = engine
        self._asked = request
        self._left = breaks_after

    def submit(self, request: GenerationRequest) -> int:
        self._asked.append(request)
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
        self.asked: list[GenerationRequest] = []

    @contextmanager
    def engine(self, version: int) -> Iterator[CountingEngine]:
        with self._engines.engine(version) as engine:
            yield CountingEngine(engine, self.asked, self._breaks_after)

    def close(self) -> None:
        self._engines.close()


class NotingTeacher:
    """Finds everything equally probable, and notes what it was asked while how many completions had been asked for."""

    name = "teacher"
    kl_coef = 0.5
    max_context: int | None = None

    def __init__(self, engines: CountingEngines) -> None:
        self._engines = engines
        self.asked: list[tuple[int, list[str]]] = []

    def start(self, requests: Sequence[ScoreRequest]) -> Future[list[list[float]]]:
        self.asked.append((len(self._engines.asked), [request.prompt_id for request in requests]))
        return finished([[-1.0 if sampled else 0.0 for sampled in request.loss_mask] for request in requests])

    def close(self) -> None:
        pass


@pytest.fixture(scope="module")
def student() -> Student:
    config = StudentConfig(parameters="full", dtype="float32", max_length=512)
    return load_student("embedded:student", config, torch.device("cpu"), seed=0)


def maker_of(
    student: Student,
    prompts: list[Prompt],
    metadata: dict[str, PromptMetadata],
    engines: CountingEngines,
    groups: Path | None = None,
) -> tuple[BatchMaker, NotingTeacher]:
    config = OnPolicyConfig(
        prompts_per_step=4, group_size=2, num_substeps=2, max_concurrent=3, max_tokens=12, max_turns=1
    )
    teacher = NotingTeacher(engines)
    maker = BatchMaker(
        prompts,
        metadata,
        Sampler(student.tokenizer, Toolbox.from_config(ToolsConfig()), config, 512),
        engines,
        TeacherRouter([Route("teacher", teacher)]),
        RewardScorer(ToolsConfig()),
        Objective(choose_algorithm(config, has_teacher=True), ["teacher"]),
        config,
        lambda *shown: None,
        groups,
    )
    return maker, teacher


def test_a_group_is_scored_while_others_are_still_to_be_sampled(
    student: Student, prompts: list[Prompt], metadata: dict[str, PromptMetadata]
) -> None:
    engines = CountingEngines(student)
    maker, teacher = maker_of(student, prompts, metadata, engines)
    batch = maker.begin(0, 7)()
    assert len(engines.asked) == 8
    assert teacher.asked[0][0] < 8
    assert all(len(asked) == 2 and len(set(asked)) == 1 for _, asked in teacher.asked)
    samples = [sample for part in batch.parts for sample in part]
    assert [len(part) for part in batch.parts] == [4, 4]
    assert [one.prompt_id for one in samples[::2]] == [one.prompt_id for one in samples[1::2]]
    for sample in samples:
        assert (sample.teacher, sample.kl_coef, sample.policy_version) == ("teacher", 0.5, 7)
        assert sample.teacher_logprobs == [-1.0 if sampled else 0.0 for sampled in sample.loss_mask]


def test_what_had_ended_when_a_batch_broke_off_is_not_sampled_again(
    student: Student, prompts: list[Prompt], metadata: dict[str, PromptMetadata], tmp_path: Path
) -> None:
    whole = maker_of(student, prompts, metadata, CountingEngines(student))[0].begin(0, 0)()
    maker, teacher = maker_of(student, prompts, metadata, CountingEngines(student, breaks_after=5), tmp_path)
    with pytest.raises(Interrupted):
        maker.begin(0, 0)()
    ended = {prompt_id for _, asked in teacher.asked for prompt_id in asked}
    assert 0 < len(ended) < 4
    engines = CountingEngines(student)
    batch = maker_of(student, prompts, metadata, engines, tmp_path)[0].begin(0, 0)()
    assert len(engines.asked) == 2 * (4 - len(ended))
    ids = [[sample.token_ids for part in made.parts for sample in part] for made in (batch, whole)]
    assert ids[0] == ids[1]
