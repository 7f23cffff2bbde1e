"""Judgements of rows by other models and files of a user's own: over HTTP, from prompts to the dataset."""

import re
from pathlib import Path
from typing import Any

import orjson
import pytest

from stillhouse.dataset.read import read_rows
from stillhouse.errors import FailureBudgetExceeded
from tasks.publish import Published
from tests.provider import ReceivedRequest, Reply, SimulatedProvider, completion

RUBRIC = [{"name": "clarity", "question": "Is it clear?", "best": 4}]


def answer(request: ReceivedRequest) -> Reply:
    """Return a teacher that is wrong on every third question, and a judge that finds every odd question unclear."""
    shown = next(message["content"] for message in request.body["messages"] if message["role"] == "user")
    number = int(re.search(r"question (\d+)", shown)[1])  # type: ignore[index]
    if request.body["model"] == "simulated":
        return Reply(completion(str(number if number % 3 else -1)))
    given, expected = re.findall(r"# (?:Final|Expected) answer\n\n(\S+)", shown)
    judgement = {
        "explanation": "because",
        "clarity": 1 if number % 2 else 3,
        "verdict": "right" if given == expected else "wrong",
    }
    return Reply(completion(orjson.dumps(judgement).decode()))


@pytest.fixture
def judge(provider: SimulatedProvider) -> dict[str, Any]:
    """Return the section of a judge."""
    return {"enabled": True, "rubric": RUBRIC, "model": {"model": "judge-1", "base_url": provider.url}}


def questions(count: int, verifier: str = "judge") -> list[dict[str, Any]]:
    return [
        {"prompt": f"question {index}", "tools": [], "metadata": {"expected_answer": str(index), "verifier": verifier}}
        for index in range(count)
    ]


def rows_by_number(published: Published, split: str) -> dict[int, dict[str, Any]]:
    assert published.dataset is not None
    rows = read_rows(Path(published.dataset.uri), split)
    return {int(row["messages"][0]["content"].split()[1]): row for row in rows}


def run_stages(published: Published) -> list[str]:
    return [name for name, cached in published.cached.items() if not cached]


def test_a_judge_verifies_and_grades_and_neither_another_threshold_nor_a_refresh_asks_again(
    generate, provider: SimulatedProvider, judge: dict[str, Any]
) -> None:
    def run(threshold: float, **runtime: Any) -> Published:
        filters = {"scores": {"judge/clarity": [threshold, None]}}
        dataset = {"judge": judge, "filters": filters, "validation_fraction": 0.0}
        return generate(questions(12), dataset=dataset, runtime={"shard_size": 5, **runtime})

    first = run(0.5)
    assert len(provider.ledger) == 24
    kept, dropped = rows_by_number(first, "train"), rows_by_number(first, "rejected")
    assert sorted(kept) == [2, 4, 8, 10]
    assert {(row["verified"], row["verifier"]) for row in kept.values()} == {(True, "judge")}
    assert {row["judge"]["scores"]["judge/clarity"] for row in kept.values()} == {0.75}
    assert {number: (row["verified"], row["drop_reasons"]) for number, row in dropped.items() if number < 4} == {
        0: (False, ["wrong"]),
        1: (True, ["score_low"]),
        3: (False, ["wrong", "score_low"]),
    }

    assert run_stages(run(0.5)) == []
    # From the journal.
    assert run_stages(run(0.5, refresh=["judge"])) == ["judge"]
    looser = run(0.25)
    assert run_stages(looser) == ["dataset"]
    assert sorted(rows_by_number(looser, "train")) == [1, 2, 4, 5, 7, 8, 10, 11]
    assert len(provider.ledger) == 24


@pytest.mark.slow
def test_rows_that_the_judge_refuses_are_made_up_for_until_the_target_is_met(
    generate, judge: dict[str, Any], provider: SimulatedProvider
) -> None:
    def run() -> Published:
        return generate(
            questions(24),
            dataset={
                "judge": judge,
                "filters": {"scores": {"judge/clarity": [0.5, None]}},
                "selection": {"target_rows": 4, "rows_per_prompt": 1},
                "validation_fraction": 0.0,
            },
            runtime={"shard_size": 12},
        )

    kept = rows_by_number(run(), "train")
    assert len(kept) == 4
    assert all(number % 2 == 0 and number % 3 for number in kept)
    asked = [body["model"] for body in provider.requests]
    # A third of the rows passes: 12 are needed on average, and each is judged once.
    assert asked.count("judge-1") == asked.count("simulated") <= 24
    assert run_stages(run()) == []
    assert len(provider.ledger) == len(asked)


def test_a_round_of_which_the_judge_keeps_nothing_is_followed_by_another(generate, judge: dict[str, Any]) -> None:
    selection = {"target_rows": 1, "rows_per_prompt": 1}
    published = generate(
        questions(4)[::-1], dataset={"judge": judge, "selection": selection, "validation_fraction": 0.0}
    )
    assert len(rows_by_number(published, "train")) == 1


@pytest.mark.slow
def test_rows_that_surprise_the_student_too_much_are_dropped_by_thresholds_alone(
    generate, provider: SimulatedProvider
) -> None:
    def run(**filters: list[float]) -> Published:
        dataset = {"labels": {"measure": ["student_nll"]}, "filters": filters, "validation_fraction": 0.0}
        return generate(questions(12, "numeric"), dataset=dataset, runtime={"device": "cpu"})

    every = rows_by_number(run(), "train")
    surprise = sorted(row["student_nll"] for row in every.values())
    assert len(set(surprise)) > 4
    middle = run(student_nll=[surprise[2], surprise[5]])
    assert run_stages(middle) == ["dataset"]
    assert sorted(row["student_nll"] for row in rows_by_number(middle, "train").values()) == surprise[2:6]
    reasons = {reason for row in rows_by_number(middle, "rejected").values() for reason in row["drop_reasons"]}
    assert reasons == {"wrong", "too_easy", "too_hard"}
    assert len(provider.ledger) == 12


LABELS = """
from stillhouse.dataset import LabelArgs, label

@label
def length(args: LabelArgs, messages: list) -> float:
    return float(len(args.answer or ""))

@label
def banned(args: LabelArgs, messages: list) -> str | None:
    return "holds a {digit}" if "{digit}" in (args.answer or "") else None
"""
REWARDS = """
from stillhouse.tools import RewardArgs, reward

@reward
def closeness(args: RewardArgs, messages: list) -> float:
    return {scale} * float(messages[-1]["content"]) / 10
"""


@pytest.mark.slow
def test_a_changed_file_of_labels_or_rewards_labels_anew_and_asks_nothing(
    generate, provider: SimulatedProvider, tmp_path: Path
) -> None:
    labels, rewards = tmp_path / "labels.py", tmp_path / "rewards.py"

    def run(digit: int, scale: float) -> Published:
        labels.write_text(LABELS.replace("{digit}", str(digit)))
        rewards.write_text(REWARDS.replace("{scale}", str(scale)))
        return generate(
            questions(12, "numeric"),
            dataset={
                "labels": {"file": str(labels)},
                "filters": {"scores": {"reward/closeness": [0.5, None], "length": [None, 1.0]}},
                "validation_fraction": 0.0,
            },
            tools={"rewards_file": str(rewards)},
            # A wrong answer has a closeness below 0, which is no reward.
            runtime={"failure_budget": 0.5},
        )

    first = run(7, 1.0)
    kept, dropped = rows_by_number(first, "train"), rows_by_number(first, "rejected")
    assert {number: row["scores"]["reward/closeness"] for number, row in kept.items()} == {5: 0.5, 8: 0.8}
    assert (dropped[7]["drop_reasons"], dropped[7]["objections"]) == (["objection"], ["holds a 7"])
    assert dropped[2]["drop_reasons"] == ["score_low"]
    assert dropped[10]["drop_reasons"] == ["score_high"]

    assert run_stages(run(7, 1.0)) == []
    for digit, scale, expected in ((57, 1.0, [5, 7, 8]), (57, 1.25, [4, 5, 7, 8])):
        changed = run(digit, scale)
        assert run_stages(changed) == ["labels", "duplicates", "dataset"]
        assert sorted(rows_by_number(changed, "train")) == expected
    assert len(provider.ledger) == 12


def test_rewards_that_fail_too_often_fail_the_run_and_the_next_one_asks_nothing(
    generate, provider: SimulatedProvider, tmp_path: Path
) -> None:
    rewards, key = tmp_path / "rewards.py", tmp_path / "key"
    rewards.write_text(f"""
from pathlib import Path
from rnow.core import RewardArgs, reward

@reward
async def judged(args: RewardArgs, messages: list) -> float:
    return float(Path({str(key)!r}).read_text())
""")

    def run() -> Published:
        dataset = {"labels": {"measure": ["rewards"]}, "validation_fraction": 0.0}
        return generate(questions(12, "numeric"), dataset=dataset, tools={"rewards_file": str(rewards)})

    with pytest.raises(FailureBudgetExceeded, match=r"12 of 12 .* judged .*No such file"):
        run()
    key.write_text("0.5")
    published = run()
    assert {row["scores"]["reward"] for row in rows_by_number(published, "train").values()} == {0.5}
    assert len(provider.ledger) == 12
