import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from stillhouse.config import DistillConfig, RolloutsConfig, StudentConfig, ToolsConfig
from stillhouse.dataset.difficulty import student_rollouts
from stillhouse.dataset.schema import DIFFICULTY_FILE
from stillhouse.types import Artifact, StopReason, Trajectory
from tasks.difficulty import DIFFICULTY, _inputs, difficulty_task
from tasks.models import base_student
from tasks.run.context import RunContext

MakeAnswered = Callable[..., Trajectory]
Measure = Callable[..., tuple[Artifact, dict[str, list[Any]]]]
STUDENT = base_student(StudentConfig())


@pytest.fixture
def measure(make_context: Callable[..., RunContext], write_shard: Callable[..., tuple[Artifact, Artifact]]) -> Measure:
    """Return the task on one shard: its artifact, and the columns of its file."""

    def run(trajectories: Any, max_length: Any = None, rollouts: Any = None, expected: str | None = "5") -> Any:
        shard, metadata = write_shard(trajectories, expected=expected)
        tools = None if rollouts is None else ToolsConfig()
        key = f"difficulty/{shard.fingerprint}/{max_length}/{rollouts}/{expected}"
        work = difficulty_task.fn(shard, STUDENT, max_length, rollouts, tools, "", metadata, key, make_context())
        artifact = asyncio.run(work)
        return artifact, pq.read_table(Path(artifact.uri) / DIFFICULTY_FILE).to_pydict()

    return run


def test_answered_rows_are_scored_in_order_and_others_are_not(measure: Measure, make_answered: MakeAnswered) -> None:
    rows = [
        make_answered("one?"),
        make_answered("two?", stop_reason=StopReason.MAX_TURNS),
        make_answered("three?", "zqx " * 40),
        make_answered("one?", sample_index=1),
    ]
    artifact, columns = measure(rows, max_length=4096)
    first, unanswered, other, again = columns["student_nll"]
    assert unanswered is None
    assert first == pytest.approx(again) != pytest.approx(other)
    assert columns["student_pass_rate"] == [None] * 4
    assert (artifact.num_rows, artifact.facts["rows_scored"], artifact.facts["prompts_rated"]) == (4, 3, 0)


@pytest.mark.slow
def test_the_student_answers_each_prompt_once_and_for_all(measure: Measure, make_answered: MakeAnswered) -> None:
    rows = [make_answered("What is 2 + 3?"), make_answered("What is 2 + 3?", "6"), make_answered("What is 1 + 1?")]
    rollouts = student_rollouts(RolloutsConfig(max_tokens=16, max_turns=1), 2)
    artifact, columns = measure(rows, rollouts=rollouts)
    assert artifact.facts["trajectories"] == 4
    assert artifact.facts["requests"] == 4
    first, second, third = columns["student_pass_rate"]
    assert first == second
    assert {first, third} <= {0.0, 0.5, 1.0}
    again, same = measure(rows[::-1], rollouts=rollouts)
    assert again.facts["requests"] == 0
    assert same["student_pass_rate"] == [third, second, first]
    _, unverified = measure(rows, rollouts=rollouts, expected=None)
    assert unverified["student_pass_rate"] == [None, None, None]


def test_likelihoods_do_not_depend_on_what_only_the_students_answers_need() -> None:
    def key(**sections: Any) -> str:
        config = DistillConfig(**{"dataset": {"labels": {"measure": ["student_nll"]}}, **sections})
        return DIFFICULTY.key(_inputs(config))

    assert key() == key(rollouts={"max_tokens": 7, "system_prompt": "s"}) == key(tools={"builtin": ["calculator"]})
    assert key() != key(student={"max_length": 99})
    sampled = {"labels": {"measure": ["student_nll"], "student_samples": 2}}
    assert key(dataset=sampled) != key(dataset=sampled, rollouts={"max_tokens": 7})
    assert key(dataset=sampled) != key(dataset=sampled, tools={"builtin": ["calculator"]})
