from typing import Any

import pytest

from tasks.pair.answers import better_finding


def answered(rights: str) -> dict[Any, dict[str, float]]:
    return {"accuracy": {f"p{place}": float(right) for place, right in enumerate(rights)}}


@pytest.mark.parametrize(
    ("teacher", "student", "level", "says"),
    [
        pytest.param("1" * 20, "01" * 10, "fine", "accuracy 100% against the student's 50%", id="better"),
        pytest.param("01" * 10, "1" * 20, "no", "it is worse", id="worse"),
        pytest.param("01" * 10, "10" * 10, "unknown", "not shown to be better", id="alike"),
        pytest.param("0" * 20, "0" * 20, "unknown", "not shown to be better", id="none right"),
        pytest.param("", "", "unknown", "give prompts an expected_answer", id="nothing to verify"),
    ],
)
def test_the_interval_of_the_paired_difference_decides(teacher: str, student: str, level: str, says: str) -> None:
    finding = better_finding("big: better", answered(teacher), answered(student))
    assert (finding.level, says in finding.detail) == (level, True), finding


def test_rewards_decide_where_no_answer_is_verified() -> None:
    low, high = ({"reward": {f"p{place}": value + place / 100 for place in range(20)}} for value in (0.1, 0.7))
    finding = better_finding("big: better", low, high)
    assert (finding.level, finding.detail.startswith("reward 0.195 against")) == ("no", True), finding
