from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stillhouse.config.dataset import SelectionConfig
from stillhouse.dataset.select.choices import duplicate_groups, preference, settle
from stillhouse.dataset.select.select import Selection
from stillhouse.errors import InputError

Row = dict[str, Any]
MakeRow = Callable[..., Row]
Select = Callable[..., Selection]
NEAR = {"duplicates": {"near": True}, "filters": {"duplicates": "near"}}
EXACT = {"filters": {"duplicates": "exact"}}


def repeat(of: str, kind: str = "exact", source: str | None = None) -> Row:
    return {"duplicate_of": of, "duplicate_kind": kind, "duplicate_source": source}


def reasons(selection: Selection, rows: list[Row]) -> dict[str, list[str]]:
    return {row["id"]: selection.reasons_of(place) for place, row in enumerate(rows)}


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, {"a": [], "b": [], "c": []}),
        (EXACT, {"a": [], "b": ["duplicate"], "c": []}),
        (NEAR, {"a": [], "b": ["duplicate"], "c": ["near_duplicate"]}),
    ],
)
def test_repeats_are_dropped_as_configured(
    config: dict[str, Any], expected: dict[str, list[str]], make_row: MakeRow, select: Select
) -> None:
    rows = [
        make_row("p", id="a"),
        make_row("q", id="b", **repeat("a")),
        make_row("r", id="c", **repeat("a", "near")),
    ]
    assert reasons(select(rows, **config), rows) == expected


def test_another_row_stands_in_for_one_that_a_filter_drops(make_row: MakeRow, select: Select) -> None:
    rows = [
        make_row("p", id="a", verified=False),
        make_row("q", id="b", **repeat("a")),
        make_row("r", id="c", **repeat("a")),
    ]
    found = reasons(select(rows, **EXACT), rows)
    assert found.pop("a") == ["wrong"]
    assert sorted(found.values()) == [[], ["duplicate"]]


def test_another_row_stands_in_for_one_outside_the_band_of_pass_rates(make_row: MakeRow, select: Select) -> None:
    rows = [
        make_row("p", 0, id="a"),
        make_row("p", 1, id="x", verified=False),
        make_row("q", id="b", **repeat("a")),
    ]
    found = reasons(select(rows, **EXACT, selection={"min_pass_rate": 0.6}), rows)
    assert found == {"a": ["pass_rate"], "x": ["wrong", "pass_rate"], "b": []}


def test_another_row_stands_in_for_one_that_its_prompt_does_not_prefer(make_row: MakeRow, select: Select) -> None:
    rows = [make_row("p", 0, id="x"), make_row("p", 1, id="a"), make_row("q", id="b", **repeat("a"))]
    found = reasons(select(rows, **EXACT, selection={"rows_per_prompt": 1}), rows)
    assert found == {"x": [], "a": ["not_preferred"], "b": []}


def test_a_repeat_makes_room_for_the_next_row_of_its_prompt(make_row: MakeRow, select: Select) -> None:
    rows = [make_row("p", 0, id="a"), make_row("p", 1, id="b", **repeat("a")), make_row("p", 2, id="c")]
    found = reasons(select(rows, **EXACT, selection={"rows_per_prompt": 2}), rows)
    assert found == {"a": [], "b": ["duplicate"], "c": []}


def test_repeats_of_an_earlier_dataset_and_rows_equal_to_them_are_dropped(make_row: MakeRow, select: Select) -> None:
    rows = [
        make_row("p", id="a", **repeat("old", "near", "v1")),
        make_row("q", id="b", **repeat("a")),
        make_row("r", id="c"),
    ]
    assert reasons(select(rows, **NEAR), rows) == {"a": ["near_duplicate"], "b": ["near_duplicate"], "c": []}
    assert reasons(select(rows, **EXACT), rows) == {"a": [], "b": ["duplicate"], "c": []}


def test_a_row_equal_to_a_near_duplicate_is_one(make_row: MakeRow, select: Select) -> None:
    rows = [
        make_row("p", id="a"),
        make_row("q", id="b", **repeat("a", "near")),
        make_row("r", id="c", **repeat("b")),
    ]
    assert reasons(select(rows, **NEAR), rows) == {"a": [], "b": ["near_duplicate"], "c": ["near_duplicate"]}
    assert reasons(select(rows, **EXACT), rows) == {"a": [], "b": [], "c": ["duplicate"]}


def test_a_row_that_replaces_one_it_nearly_repeats_makes_the_others_near(make_row: MakeRow, select: Select) -> None:
    rows = [
        make_row("p", 1, id="a"),
        make_row("p", 0, id="x"),
        make_row("q", id="b", **repeat("a", "near")),
        make_row("q", 1, id="c", **repeat("a")),
    ]
    found = reasons(select(rows, **NEAR, selection={"rows_per_prompt": 1}), rows)
    assert (found["x"], found["a"], found["b"]) == ([], ["not_preferred"], [])
    assert found["c"] in (["near_duplicate"], ["not_preferred"])


def test_a_repeat_of_a_row_that_is_not_there_is_an_error(make_row: MakeRow, select: Select) -> None:
    with pytest.raises(InputError, match="1 of 1 rows repeat a row that is not among the 2 candidates"):
        select([make_row("p"), make_row("q", **repeat("gone"))], **EXACT)


@given(
    data=st.lists(
        st.tuples(st.integers(0, 4), st.integers(0, 3), st.integers(0, 9), st.booleans(), st.booleans()), min_size=1
    ),
    most=st.none() | st.integers(1, 3),
    shuffle=st.randoms(use_true_random=False),
)
def test_what_is_dropped_is_dropped_for_what_is_kept(
    data: list[tuple[int, int, int, bool, bool]],
    most: int | None,
    shuffle: Any,
    frame: Callable[..., pd.DataFrame],
) -> None:
    prompts, groups, indices, near, remaining = (np.array(values) for values in zip(*data, strict=True))
    ids = np.arange(1, len(data) + 1, dtype=np.uint64)
    # The first row of each group is the one that the others repeat.
    originals = ids[[int(np.argmax(groups == group)) for group in groups]]
    rows = frame(
        id=ids, prompt=prompts, original=originals, is_near=near & (originals != ids), sample_index=indices
    )  # fmt: skip
    rows["preference"] = preference(rows, SelectionConfig())
    settled = settle(rows, remaining, duplicate_groups(rows), most)
    repeats = settled.repeats | settled.near_repeats
    kept = remaining & ~repeats & ~settled.refused
    assert not (repeats & settled.refused).any()
    assert not ((repeats | settled.refused) & ~remaining).any()
    for group in np.unique(groups):
        assert kept[groups == group].sum() <= 1
        assert kept[groups == group].any() or not repeats[groups == group].any()
    for row in np.flatnonzero(settled.refused):
        mates = kept & (prompts == prompts[row])
        assert mates.sum() == most
        assert (rows["preference"][mates] < rows["preference"][row]).all()
    if most is not None:
        assert max(np.bincount(prompts[kept]), default=0) <= most

    order = list(range(len(data)))
    shuffle.shuffle(order)
    again = settle(rows.iloc[order].reset_index(drop=True), remaining[order], _shuffled(rows, order), most)
    assert all(np.array_equal(one[order], other) for one, other in zip(settled, again, strict=True))


def _shuffled(rows: pd.DataFrame, order: list[int]) -> Any:
    return duplicate_groups(rows.iloc[order].reset_index(drop=True))
