"""Pass rates, best of n, quotas and the target."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stillhouse.dataset.select.order import spread
from stillhouse.dataset.select.quotas import over_quota
from stillhouse.dataset.select.select import Selection
from stillhouse.dataset.select.target import surplus
from stillhouse.errors import ConfigError

Row = dict[str, Any]
Select = Callable[..., Selection]


def kept(selection: Selection, rows: list[Row]) -> list[str]:
    return sorted(row["id"] for row, split in zip(rows, selection.splits, strict=True) if split >= 0)


def of_prompts(make_row: Callable[..., Row], num_prompts: int, num_samples: int, **changes: Any) -> list[Row]:
    return [make_row(f"p{prompt}", sample, **changes) for prompt in range(num_prompts) for sample in range(num_samples)]


@pytest.mark.parametrize(
    ("band", "expected"),
    [
        ({}, ["all", "half", "none", "unknown"]),
        ({"min_pass_rate": 0.5}, ["all", "half", "unknown"]),
        ({"min_pass_rate": 0.51}, ["all", "unknown"]),
        ({"max_pass_rate": 0.5}, ["half", "none", "unknown"]),
        ({"min_pass_rate": 0.1, "max_pass_rate": 0.9}, ["half", "unknown"]),
    ],
)
def test_prompts_outside_the_band_of_pass_rates_are_dropped(
    band: dict[str, float], expected: list[str], make_row: Callable[..., Row], select: Select
) -> None:
    verified = {"all": [True, None], "half": [True, False], "none": [False, None], "unknown": [None, None]}
    rows = [make_row(prompt, n, verified=v) for prompt, values in verified.items() for n, v in enumerate(values)]
    selection = select(rows, filters={"drop_wrong": False}, selection=band)
    assert sorted({name.split("/")[0] for name in kept(selection, rows)}) == expected
    rates = [1, 1, 0.5, 0.5, 0, 0, np.nan, np.nan]
    np.testing.assert_array_equal(selection.pass_rates, np.array(rates, np.float32))


def test_pass_rates_count_rows_that_filters_drop_but_no_row_twice(make_row: Callable[..., Row], select: Select) -> None:
    rows = [make_row("p", 0), make_row("p", 1, verified=False, stop_reason="length"), make_row("p", 0)]
    assert select(rows).pass_rates.tolist() == [0.5, 0.5, 0.5]


@pytest.mark.parametrize(
    ("prefer", "expected"),
    [
        ({"prefer": "first"}, ["p/1", "p/2"]),
        ({"prefer": "shortest"}, ["p/2", "p/3"]),
        ({"prefer": "fewest_tool_calls"}, ["p/1", "p/3"]),
        ({"prefer": "score", "score": "reward"}, ["p/2", "p/3"]),
    ],
)
def test_the_preferred_rows_of_a_prompt_stay_and_right_ones_come_first(
    prefer: dict[str, str], expected: list[str], make_row: Callable[..., Row], select: Select
) -> None:
    rows = [
        make_row("p", 0, verified=None, num_tokens=1, num_tool_calls=0, scores='{"reward": 9}'),
        make_row("p", 1, num_tokens=30, num_tool_calls=1, scores='{"reward": null}'),
        make_row("p", 2, num_tokens=10, num_tool_calls=4, scores='{"reward": 0.5}'),
        make_row("p", 3, num_tokens=20, num_tool_calls=1, scores='{"reward": 0.25}'),
        make_row("p", 4, num_tokens=2, verified=False, num_tool_calls=0, scores='{"reward": 9}'),
    ]
    selection = select(rows, selection={"rows_per_prompt": 2, **prefer})
    assert kept(selection, rows) == expected
    assert selection.reasons_of(0) == ["not_preferred"]
    assert selection.reasons_of(4) == ["wrong"]


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([{"num_tokens": 9, "completion_tokens": 1}, {"num_tokens": 8, "completion_tokens": 2}], "p/1"),
        ([{"num_tokens": None, "completion_tokens": 5}, {"num_tokens": None, "completion_tokens": 4}], "p/1"),
        ([{"num_tokens": None, "sampled_chars": 5}, {"num_tokens": None, "sampled_chars": 4}], "p/1"),
        ([{"num_tokens": 7}, {"num_tokens": 7}], "p/0"),
    ],
)
def test_shortest_goes_by_student_tokens_then_completion_tokens_then_characters(
    sizes: list[Row], expected: str, make_row: Callable[..., Row], select: Select
) -> None:
    rows = [make_row("p", number, **size) for number, size in enumerate(sizes)]
    assert kept(select(rows, selection={"rows_per_prompt": 1, "prefer": "shortest"}), rows) == [expected]


def test_a_quota_takes_one_row_of_each_prompt_before_a_second(make_row: Callable[..., Row], select: Select) -> None:
    rows = of_prompts(make_row, 5, 3, tag="math") + [make_row(f"x{n}", tag="code") for n in range(4)]
    rows += [make_row("untagged")]
    selection = select(rows, selection={"quotas": {"math": 7}})
    names = kept(selection, rows)
    per_prompt = Counter(name.split("/")[0] for name in names if name.startswith("p"))
    assert sorted(per_prompt.values()) == [1, 1, 1, 2, 2]
    assert sum(per_prompt.values()) == 7
    assert len(names) == 7 + 4 + 1
    assert Counter(reason for row in range(len(rows)) for reason in selection.reasons_of(row)) == {"quota": 8}


def test_a_quota_for_an_unknown_tag_is_an_error_that_names_those_seen(
    make_row: Callable[..., Row], select: Select
) -> None:
    with pytest.raises(ConfigError, match=r"quotas names 'maths', which no trajectory is tagged; seen: 'code', 'math'"):
        select([make_row("p", tag="math"), make_row("q", tag="code")], selection={"quotas": {"maths": 1, "code": 1}})


@pytest.mark.parametrize(("target", "expected"), [(1, 1), (7, 7), (12, 12), (15, 15), (99, 15)])
def test_exactly_as_many_rows_as_the_target_are_kept_if_so_many_are_left(
    target: int, expected: int, make_row: Callable[..., Row], select: Select
) -> None:
    rows = of_prompts(make_row, 5, 4)
    rows = [{**row, "verified": row["sample_index"] != 3} for row in rows]
    selection = select(rows, selection={"target_rows": target}, validation_fraction=0.2)
    assert selection.kept == expected
    per_prompt = Counter(name.split("/")[0] for name in kept(selection, rows))
    assert max(per_prompt.values()) - min([per_prompt[f"p{n}"] for n in range(5)]) <= 1
    reasons = [selection.reasons_of(n) for n, row in enumerate(rows) if row["verified"]]
    assert (reasons.count([]), reasons.count(["surplus"])) == (expected, 15 - expected)


@given(
    prompts=st.lists(st.integers(0, 5), min_size=1),
    fewer=st.integers(0, 20),
    more=st.integers(0, 20),
    seed=st.integers(0, 9),
)
def test_asking_for_more_rows_adds_and_never_swaps(
    prompts: list[int], fewer: int, more: int, seed: int, frame: Callable[..., pd.DataFrame]
) -> None:
    ids = np.random.default_rng(seed).permutation(len(prompts)).astype(np.uint64) + np.uint64(1)
    rows = frame(id=ids, prompt=prompts, tag=["math"] * len(prompts)).assign(preference=np.arange(len(prompts)))
    alive = np.ones(len(prompts), bool)
    for drops in (lambda most: surplus(rows, alive, most), lambda most: over_quota(rows, alive, {"math": most})):
        few, many = ~drops(fewer), ~drops(fewer + more)
        assert (few.sum(), many.sum()) == (min(fewer, len(prompts)), min(fewer + more, len(prompts)))
        assert not (few & ~many).any()
    counts = Counter(prompts)
    firsts = [prompts[row] for row in spread(rows, alive)[: len(counts)]]
    assert sorted(firsts) == sorted(counts)
