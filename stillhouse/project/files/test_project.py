"""Tests of tools.py and rewards.py that ask no model: `pip install pytest`, then `pytest` in this folder.

The answers are written here in the model's place, so they show what your tools return and how an answer is scored.
"""

from typing import Any

from stillhouse.testing import completion, rehearse

ROW = {"prompt": "Nine boxes of 4 apples: how many apples?", "metadata": {"expected_answer": "36"}}


def call(expression: str) -> dict[str, Any]:
    return completion(tool_calls=[("calculator", f'{{"expression": "{expression}"}}')])


def test_a_right_answer_by_one_call_scores_one() -> None:
    rehearsal = rehearse("config.yaml", ROW, [call("9 * 4"), completion("36")])
    assert rehearsal.trajectory.messages[2]["content"] == "36"
    assert rehearsal.rewards.total == 1.0


def test_a_repeated_call_costs_reward() -> None:
    rehearsal = rehearse("config.yaml", ROW, [call("9 * 4"), call("9 * 4"), completion("36")])
    assert rehearsal.rewards.values["sparing"] == 0.5


def test_a_failing_tool_answers_with_a_message() -> None:
    rehearsal = rehearse("config.yaml", ROW, [call("nine * 4"), completion("no number")])
    assert "expected whole numbers" in str(rehearsal.trajectory.messages[2]["content"])
    assert rehearsal.rewards.total == 0.0
