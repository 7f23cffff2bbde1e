from pathlib import Path
from typing import Any

import orjson
import pyarrow.parquet as pq
import pytest

from stillhouse.agent.answer_schema import AnswerSchema
from stillhouse.config import Criterion, JudgeConfig, TeacherConfig
from stillhouse.dataset.judge.judgements import combine, count_outcomes, write_judgements
from stillhouse.dataset.judge.schema import judge_rollouts, judgement_schema
from stillhouse.errors import ConfigError
from stillhouse.types import StopReason, Trajectory

RUBRIC = (Criterion(name="clarity", question="Clear?", best=4), Criterion(name="care", question="Careful?", best=10))


def judgement(stop_reason: StopReason = StopReason.ANSWERED, **said: Any) -> Trajectory:
    body = {"explanation": "because", "clarity": 4, "care": 5, **said}
    messages = [{"role": "user", "content": "grade"}, {"role": "assistant", "content": orjson.dumps(body).decode()}]
    return Trajectory("k", "p", 0, messages, [], [], stop_reason, "m")  # type: ignore[arg-type]


def combined(*judgements: Trajectory, num_samples: int | None = None) -> Any:
    return combine(judgements, JudgeConfig(rubric=RUBRIC, num_samples=num_samples or len(judgements)))


def test_scores_are_mean_grades_over_the_best() -> None:
    row = combined(judgement(), judgement(clarity=1, care=0))
    assert row["scores"] == {"judge/clarity": pytest.approx(2.5 / 4), "judge/care": 0.25}
    assert row["num_judgements"] == 2
    assert row["verdict"] is None


def test_a_judgement_that_failed_or_misses_its_schema_counts_for_nothing() -> None:
    failed, invalid = judgement(StopReason.ERROR, clarity=0), judgement(StopReason.INVALID, clarity=0)
    assert combined(failed, invalid) is None
    assert combined(failed, judgement(), invalid)["scores"]["judge/clarity"] == 1.0


@pytest.mark.parametrize(
    ("verdicts", "num_samples", "expected"),
    [
        (["right"], 1, True),
        (["wrong"], 1, False),
        (["cannot_tell"], 1, None),
        (["right", "wrong"], 2, None),
        (["right", "right", "wrong"], 3, True),
        (["wrong", "cannot_tell", "right"], 3, None),
        # Two of three judgements failed: the one left is no majority.
        (["right"], 3, None),
    ],
)
def test_the_verdict_is_that_of_more_than_half_of_the_samples(
    verdicts: list[str], num_samples: int, expected: bool | None
) -> None:
    row = combined(*(judgement(verdict=verdict) for verdict in verdicts), num_samples=num_samples)
    assert row["verdict"] is expected


def test_the_explanation_is_one_that_agrees_with_the_verdict() -> None:
    said = [("wrong", "it says 6"), ("right", "it says 5"), ("right", "also")]
    row = combined(*(judgement(verdict=verdict, explanation=why) for verdict, why in said))
    assert row["explanation"] == "it says 5"


def test_the_schema_takes_exactly_the_keys_asked_for() -> None:
    schema = AnswerSchema(judgement_schema(RUBRIC, verdict=True))

    def problem(**said: Any) -> str | None:
        body = {"explanation": "", "clarity": 4, "care": 0, "verdict": "cannot_tell", **said}
        return schema.problem({"role": "assistant", "content": orjson.dumps(body).decode()})

    assert problem() is None
    for wrong in ({"clarity": 5}, {"care": -1}, {"care": 2.5}, {"verdict": "maybe"}, {"more": 1}, {"explanation": 1}):
        assert problem(**wrong) is not None
    assert list(judgement_schema(RUBRIC, verdict=False)["properties"]) == ["explanation", "clarity", "care"]


@pytest.mark.parametrize("name", ["clarity", "explanation", "verdict"])
def test_a_name_that_is_taken_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"dataset\.judge\.rubric: the name '{name}' is taken"):
        judgement_schema([*RUBRIC, Criterion(name=name, question="?")], verdict=False)


def test_corrections_have_turns_of_their_own_and_a_batch_has_none() -> None:
    asked = judge_rollouts(JudgeConfig(rubric=RUBRIC), verdict=True)
    assert asked.max_turns == 1 + asked.max_corrections > 1
    batch = judge_rollouts(JudgeConfig(model=TeacherConfig(base_url="http://h/v1", batch=True)), verdict=True)
    assert (batch.max_turns, batch.max_corrections) == (1, 0)


def test_the_file_has_a_row_for_each_trajectory_in_order(tmp_path: Path) -> None:
    rows = [None, combined(judgement(verdict="right")), None]
    assert write_judgements(tmp_path / "judge.parquet", rows) == 3
    kept = pq.read_table(tmp_path / "judge.parquet")["judge"].cast("string").to_pylist()
    assert [None if text is None else orjson.loads(text) for text in kept] == rows
    assert count_outcomes(rows) == {"judged": 1, "judged_right": 1, "judged_wrong": 0}
