"""From judgements to what a row keeps of them."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

import orjson

from stillhouse.config import Criterion, JudgeConfig
from stillhouse.dataset.judge.schema import EXPLANATION, RIGHT, VERDICT, WRONG
from stillhouse.dataset.rows import TableWriter
from stillhouse.dataset.schema import JUDGE_COLUMNS
from stillhouse.types import JsonObject, StopReason, Trajectory
from stillhouse.verification import final_answer

SCORE_PREFIX: Final = "judge/"
"""What the names of scores in the column `judge` begin with."""


def combine(judgements: Sequence[Trajectory], config: JudgeConfig) -> JsonObject | None:
    """What the judgements of one trajectory say together; None where none of them came out.

    A judgement that failed, or that missed its schema to the last, says nothing: it is neither a low grade nor a wrong
    answer.

    Returns:
        `scores`: the mean grade of each criterion over its best, in [0, 1], as `judge/NAME`. `verdict`: True or False
        where more than half of `config.num_samples` say right or wrong, else None. `explanation`: of the first
        judgement that agrees with the verdict. `num_judgements`: how many came out.
    """
    answers = [answer for one in judgements if (answer := _answer(one)) is not None]
    if not answers:
        return None
    verdict = _majority([answer.get(VERDICT) for answer in answers], config.num_samples)
    agreeing = [one for one in answers if verdict is None or one[VERDICT] == (RIGHT if verdict else WRONG)]
    return {
        "scores": {f"{SCORE_PREFIX}{one.name}": _mean(answers, one) for one in config.rubric},
        "verdict": verdict,
        "explanation": agreeing[0][EXPLANATION],
        "num_judgements": len(answers),
    }


def write_judgements(path: Path, rows: Iterable[JsonObject | None]) -> int:
    """Writes the column `judge`, a row for each of a shard's trajectories in their order; the number of rows."""
    with TableWriter(path, JUDGE_COLUMNS) as table:
        for row in rows:
            table.write({"judge": None if row is None else orjson.dumps(row, option=orjson.OPT_SORT_KEYS).decode()})
    return table.num_rows


def count_outcomes(rows: Iterable[JsonObject | None]) -> dict[str, int]:
    """How many rows the judge was heard on, and how many of them it calls right and wrong."""
    heard = [row for row in rows if row is not None]
    return {
        "judged": len(heard),
        "judged_right": sum(row["verdict"] is True for row in heard),
        "judged_wrong": sum(row["verdict"] is False for row in heard),
    }


def _answer(judgement: Trajectory) -> Mapping[str, object] | None:
    # The rollout engine has checked answers against the schema; those that miss it end as invalid.
    text = final_answer(judgement.messages) if judgement.stop_reason is StopReason.ANSWERED else None
    return None if text is None else orjson.loads(text)


def _mean(answers: Sequence[Mapping[str, object]], criterion: Criterion) -> float:
    grades = [grade for answer in answers if isinstance(grade := answer[criterion.name], int | float)]
    return sum(grades) / len(grades) / criterion.best


def _majority(verdicts: Sequence[object], num_samples: int) -> bool | None:
    if 2 * verdicts.count(RIGHT) > num_samples:
        return True
    return False if 2 * verdicts.count(WRONG) > num_samples else None
