from collections.abc import Callable
from typing import Any

import numpy as np
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
NEAR = {"filters": {"duplicates": "near"}}
EXACT = {"filters": {"duplicates": "exact"}}


def repeat(of: str, kind: str = "exact", source: str | None = None) -> Row:
    return {"duplicate_of": of, "duplicate_kind": kind, "duplicate_source": source}


def reasons(selection: Selection, rows: list[Row]) -> dict[str, list[str]]:
    return {row["id"]: selection.reasons_of(place) for place, row in enumerate(rows)}


REPEATED = [{"id": "a"}, {"id": "b", **repeat("a")}, {"id": "c", **repeat("a", "near")}]
OF_EARLIER = [{"id": "a", **repeat("old", "near", "v1")}, {"id": "b", **repeat("a")}, {"id": "c"}]
EQUAL_TO_NEAR = [{"id": "a"}, {"id": "b", **repeat("a", "near")}, {"id": "c", **repeat("b")}]
RATED = [{"id": "a"}, {"prompt_id": "p0", "id": "x", "verified": False}, {"id": "b", **repeat("a")}]
PREFERRED = [{"prompt_id": "p1", "id": "x"}, {"id": "a"}, {"id": "b", **repeat("a")}]
OF_ONE_PROMPT = [{"prompt_id": "p", **row} for row in ({"id": "a"}, {"id": "b", **repeat("a")}, {"id": "c"})]


@pytest.mark.parametrize(
    ("rows", "config", "expected"),
    [
        (REPEATED, {}, [[], [], []]),
        (REPEATED, EXACT, [[], ["duplicate"], []]),
        (REPEATED, NEAR, [[], ["duplicate"], ["near_duplicate"]]),
        (OF_EARLIER, NEAR, [["near_duplicate"], ["near_duplicate"], []]),
        (OF_EARLIER, EXACT, [[], ["duplicate"], []]),
        (EQUAL_TO_NEAR, NEAR, [[], ["near_duplicate"], ["near_duplicate"]]),
        (EQUAL_TO_NEAR, EXACT, [[], [], ["duplicate"]]),
        # Another row stands in for one that is not kept, or makes room for the next one of its prompt.
        (RATED, {**EXACT, "selection": {"pass_rate": [0.6, None]}}, [["pass_rate"], ["wrong", "pass_rate"], []]),
        (PREFERRED, {**EXACT, "selection": {"rows_per_prompt": 1}}, [[], ["not_preferred"], []]),
        (OF_ONE_PROMPT, {**EXACT, "selection": {"rows_per_prompt": 2}}, [[], ["duplicate"], []]),
    ],
)
def test_repeats_are_dropped_as_configured(
    rows: list[Row], config: dict[str, Any], expected: list[list[str]], make_row: MakeRow, select: Select
) -> None:
    made = [make_row(**{"prompt_id": f"p{place}", "sample_index": place, **row}) for place, row in enumerate(rows)]
    assert list(reasons(select(made, **config), made).values()) == expected


def test_another_row_stands_in_for_one_that_a_filter_drops(make_row: MakeRow, select: Select) -> None:
    rows = [
        make_row("p", id="a", verified=False),
        make_row("q", id="b", **repeat("a")),
        make_row("r", id="c", **repeat("a")),
    ]
    found = reasons(select(rows, **EXACT), rows)
    assert found.pop("a") == ["wrong"]
    assert sorted(found.values()) == [[], ["duplicate"]]


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
    with pytest.raises(InputError, match=r"1 of 1 .* 2 candidates"):
        select([make_row("p"), make_row("q", **repeat("gone"))], **EXACT)


@given(
    data=st.lists(
        st.tuples(st.integers(0, 4), st.integers(0, 3), st.integers(0, 9), st.booleans(), st.booleans()), min_size=1
    ),
    most=st.none() | st.integers(1, 3),
    shuffle=st.randoms(use_true_random=False),
)
def test_what_is_dropped_is_dropped_for_what_is_kept(
    data: list[tuple[int, int, int, bool, bool]], most: int | None, shuffle: Any, frame: Any
) -> None:
    prompts, groups, indices, near, remaining = (np.array(values) for values in zip(*data, strict=True))
    ids = np.arange(1, len(data) + 1, dtype=np.uint64)
    # The first row of each group is the one that the others repeat.
    originals = ids[[int(np.argmax(groups == group)) for group in groups]]
    is_near = near & (originals != ids)
    rows = frame(id=ids, prompt=prompts, original=originals, is_near=is_near, sample_index=indices)
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
    shuffled = rows.iloc[order].reset_index(drop=True)
    again = settle(shuffled, remaining[order], duplicate_groups(shuffled), most)
    assert all(np.array_equal(one[order], other) for one, other in zip(settled, again, strict=True))
