from collections.abc import Callable
from typing import Any

import pytest

from stillhouse.dataset.select.select import Selection

Row = dict[str, Any]


def pairs(select: Callable[..., Selection], rows: list[Row], selection: Row | None = None, **config: Any) -> list[Any]:
    found = select(rows, selection={"pairs": True, **(selection or {})}, **config).pairs
    return [(rows[right]["id"], rows[wrong]["id"]) for right, wrong in found]


def test_a_pair_is_a_prompts_preferred_right_row_and_its_preferred_wrong_one(
    make_row: Callable[..., Row], select: Callable[..., Selection]
) -> None:
    rows = [
        make_row("p", 0, verified=False, num_tokens=9),
        make_row("p", 1, num_tokens=9),
        make_row("p", 2, verified=False, num_tokens=8),
        make_row("p", 3, num_tokens=8),
        make_row("only right"),
        make_row("only wrong", verified=False),
        make_row("unverified", verified=None),
        make_row("q", 0),
        make_row("q", 1, verified=False),
    ]
    assert pairs(select, rows) == [("p/1", "p/0"), ("q/0", "q/1")]
    assert pairs(select, rows, {"prefer": "shortest"}) == [("p/3", "p/2"), ("q/0", "q/1")]


@pytest.mark.parametrize(
    "fault",
    [{"stop_reason": "max_turns"}, {"has_answer": False}, {"num_tokens": 101}, {"contamination": ['{"ngram": 9}']}],
)
def test_a_wrong_row_with_another_fault_makes_no_pair(
    fault: Row, make_row: Callable[..., Row], select: Callable[..., Selection]
) -> None:
    assert pairs(select, [make_row("p", 0), make_row("p", 1, verified=False, **fault)]) == []


def test_a_wrong_row_may_score_low(make_row: Callable[..., Row], select: Callable[..., Selection]) -> None:
    rows = [make_row("p", 0, scores='{"a": 1}'), make_row("p", 1, verified=False, scores='{"a": 0}')]
    assert pairs(select, rows, filters={"min_scores": {"a": 0.5}}) == [("p/0", "p/1")]


def test_the_right_row_of_a_pair_is_kept_and_wrong_rows_pair_even_if_they_are_kept(
    make_row: Callable[..., Row], select: Callable[..., Selection]
) -> None:
    rows = [make_row("p", 0, num_tokens=101), make_row("p", 1), make_row("p", 2, verified=False)]
    assert pairs(select, rows, filters={"drop_wrong": False}) == [("p/1", "p/2")]
    rows = [make_row("p", 0), make_row("p", 1, verified=False), make_row("q", 0), make_row("q", 1, verified=False)]
    assert len(pairs(select, rows, {"target_rows": 1})) == 1


def test_a_repeated_row_makes_no_pair(make_row: Callable[..., Row], select: Callable[..., Selection]) -> None:
    wrong = make_row("p", 1, verified=False, num_tokens=101)
    assert pairs(select, [make_row("p", 0), wrong, wrong]) == []


def test_there_are_no_pairs_unless_asked_for(make_row: Callable[..., Row], select: Callable[..., Selection]) -> None:
    assert select([make_row("p", 0), make_row("p", 1, verified=False)]).pairs == []
