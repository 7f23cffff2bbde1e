from types import SimpleNamespace
from typing import Any

import pytest

from flows import distill
from tasks.run.context import StageOutcome
from tasks.run.stage import Stage
from tasks.run.summary import headline, summary_rows
from tasks.trajectory_import import IMPORTS

STAGES = {stage.name: stage for stage in distill.STAGES}


def outcome(name: str, cached: bool = False, stage: Stage | None = None, **facts: Any) -> StageOutcome:
    stage = stage or STAGES[name.partition(" of ")[0]]
    return StageOutcome(stage, name, SimpleNamespace(facts=facts), cached, 1.25)


@pytest.mark.parametrize(
    ("stage", "text"),
    [
        (outcome("prompts", train=8, held_out=2, malformed=0, duplicates=0), "8 + 2 held out"),
        (outcome("prompts", train=8, held_out=0, malformed=3, duplicates=1), "8 + 0 held out, 3 malformed, 1 repeated"),
        (outcome("rollouts", trajectories=8, failed=1), "8 done, 1 failed"),
        (
            outcome("rollouts", stage=IMPORTS, trajectories=8, failed=0, malformed=2, of_other_prompts=5),
            "8 done, 0 failed, 2 malformed, 5 of other prompts",
        ),
        (
            outcome("rollouts", trajectories=8, failed=0, cost_usd=1.5, estimated_usd=1.5, possible_usd=0.25),
            "8 done, 0 failed, $1.50, all of it by price, up to $0.2500 more untold",
        ),
        (outcome("dataset", kept=5, dropped=2, duplicates=0), "5 kept, 2 dropped"),
        (outcome("dataset", kept=5, dropped=2, duplicates=4), "5 kept, 2 dropped, 4 repeated"),
        (outcome("judge", judged=8), "8 judged"),
        (
            outcome("judge", judged=5, lost_judgements=3, why_lost={"it ended as length": 2, "no JSON": 1}),
            "5 judged, 3 lost: it ended as length",
        ),
        (outcome("labels", rows=8), "8 labelled"),
        (outcome("labels", rows=8, num_reward_errors=3), "8 labelled, 3 reward errors"),
        (outcome("on_policy", steps=4, num_reward_errors=2), "4 steps, 2 reward errors"),
        (outcome("sft", steps=1), "1 step"),
        (outcome("pair", verdict="go"), "go"),
        (outcome("sft", steps=4, truncated_rows=3), "4 steps, 3 rows cut"),
        (outcome("sft", steps=4, dropped_rows=2, unlearnt_rows=1), "4 steps, 2 too long, 1 with nothing to learn"),
    ],
)
def test_a_line_tells_what_was_left_out_where_something_was(stage: StageOutcome, text: str) -> None:
    assert summary_rows([stage], {})[0][-1] == text


@pytest.mark.parametrize(
    ("stages", "rates", "line"),
    [
        ([outcome("dataset", kept=399, dropped=1)], {}, "kept 399 of 400"),
        ([outcome("dataset", kept=3999, dropped=1), outcome("sft", steps=4)], {}, "kept 3,999 of 4,000, sft: 4 steps"),
        (
            [outcome("dataset", kept=3, dropped=0), outcome("comparison", reference="base")],
            {"base": 0.455, "sft": 0.7, "on_policy": 0.861, "teacher": 0.9},
            "kept 3 of 3, sft 70.0%, on_policy 86.1% against base 45.5%",
        ),
        ([outcome("comparison", reference="champion")], {"base": 0.4, "champion": 0.5}, "comparison: against champion"),
    ],
)
def test_a_run_is_summed_up_in_a_line(stages: list[StageOutcome], rates: dict[str, float], line: str) -> None:
    assert headline(stages, {name: {"accuracy": rate} for name, rate in rates.items()}) == line


def test_errors_of_rewards_in_evaluations_are_added_up() -> None:
    measured = {"student": {"accuracy": None, "num_reward_errors": 2}, "teacher": {"num_reward_errors": 1}}
    stages = [outcome("evaluation of student"), outcome("evaluation of teacher")]
    assert summary_rows(stages, measured)[0][-1] == "2 models, 3 reward errors"


def test_a_model_that_no_stage_of_the_run_made_has_a_row_for_its_accuracy() -> None:
    accuracy = {"accuracy": 0.5, "accuracy_low": 0.4, "accuracy_high": 0.6}
    stages = [outcome("sft", steps=4), *(outcome(f"evaluation of {name}") for name in ("base", "sft", "champion"))]
    rows = summary_rows(stages, dict.fromkeys(("base", "sft", "champion", "teacher"), accuracy))
    assert [row[0] for row in rows] == ["base student", "sft", "champion", "teacher", "evaluation"]
    assert {row[1] for row in rows[:-1]} == {"50.0% (40%-60%)"}


def test_tokens_are_counted_where_they_are_spent() -> None:
    spent = {"prompt_tokens": 1000, "completion_tokens": 500}
    stages = [
        outcome("rollouts", trajectories=1, failed=0, cached=True, **spent),
        outcome("dataset", kept=1, dropped=0, candidate_completion_tokens=500),
    ]
    assert [row[2:5] for row in summary_rows(stages, {})] == [["1,500", "1.2", "yes"], ["", "1.2", ""]]
