from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stillhouse.dataset.select.choices import in_validation, over_quota, over_target, spread
from stillhouse.dataset.select.select import Selection
from stillhouse.errors import ConfigError
from stillhouse.prompts import split_prompts
from stillhouse.store.fingerprint import unit_interval
from stillhouse.types import Prompt

Row = dict[str, Any]
MakeRow = Callable[..., Row]
Frame = Callable[..., pd.DataFrame]
Select = Callable[..., Selection]


def kept(selection: Selection, rows: list[Row]) -> list[str]:
    return sorted(row["id"] for row, split in zip(rows, selection.splits, strict=True) if split >= 0)


def of_prompts(make_row: MakeRow, num_prompts: int, num_samples: int, **changes: Any) -> list[Row]:
    return [make_row(f"p{prompt}", sample, **changes) for prompt in range(num_prompts) for sample in range(num_samples)]


@pytest.mark.parametrize(
    ("band", "expected"),
    [
        ({}, ["all", "half", "none", "unknown"]),
        ({"pass_rate": [0.5, None]}, ["all", "half", "unknown"]),
        ({"pass_rate": [0.51, None]}, ["all", "unknown"]),
        ({"pass_rate": [None, 0.5]}, ["half", "none", "unknown"]),
        ({"pass_rate": [0.1, 0.9]}, ["half", "unknown"]),
    ],
)
def test_prompts_outside_the_band_are_dropped(
    band: dict[str, Any], expected: list[str], make_row: MakeRow, select: Select
) -> None:
    verified = {"all": [True, None], "half": [True, False], "none": [False, None], "unknown": [None, None]}
    rows = [make_row(prompt, n, verified=v) for prompt, values in verified.items() for n, v in enumerate(values)]
    selection = select(rows, filters={"drop_wrong": False}, selection=band)
    assert sorted({name.split("/")[0] for name in kept(selection, rows)}) == expected
    rates = [1, 1, 0.5, 0.5, 0, 0, np.nan, np.nan]
    np.testing.assert_array_equal(selection.pass_rates, np.array(rates, np.float32))


def test_pass_rates_count_rows_that_filters_drop_but_no_row_twice(make_row: MakeRow, select: Select) -> None:
    rows = [make_row("p", 0), make_row("p", 1, verified=False, stop_reason="length"), make_row("p", 0)]
    assert select(rows).pass_rates.tolist() == [0.5, 0.5, 0.5]


@pytest.mark.parametrize(
    ("prefer", "expected"),
    [
        ({"prefer": "first"}, ["p/1", "p/2"]),
        ({"prefer": "shortest"}, ["p/2", "p/3"]),
        ({"prefer": "fewest_tool_calls"}, ["p/1", "p/3"]),
        ({"prefer": "score:reward"}, ["p/2", "p/3"]),
    ],
)
def test_preferred_and_right_rows_of_a_prompt_stay(
    prefer: dict[str, str], expected: list[str], make_row: MakeRow, select: Select
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
def test_shortest_is_by_tokens_then_chars(sizes: list[Row], expected: str, make_row: MakeRow, select: Select) -> None:
    rows = [make_row("p", number, **size) for number, size in enumerate(sizes)]
    assert kept(select(rows, selection={"rows_per_prompt": 1, "prefer": "shortest"}), rows) == [expected]


def test_a_quota_takes_one_row_of_each_prompt_before_a_second(make_row: MakeRow, select: Select) -> None:
    rows = of_prompts(make_row, 5, 3, tag="math") + [make_row(f"x{n}", tag="code") for n in range(4)]
    rows += [make_row("untagged")]
    selection = select(rows, selection={"quotas": {"math": 7}})
    names = kept(selection, rows)
    per_prompt = Counter(name.split("/")[0] for name in names if name.startswith("p"))
    assert sorted(per_prompt.values()) == [1, 1, 1, 2, 2]
    assert sum(per_prompt.values()) == 7
    assert len(names) == 7 + 4 + 1
    assert Counter(reason for row in range(len(rows)) for reason in selection.reasons_of(row)) == {"quota": 8}
    with pytest.raises(ConfigError, match=r"quotas .*'maths'.*'code', 'math'"):
        select(rows, selection={"quotas": {"maths": 1, "code": 1}})


@pytest.mark.parametrize(("target", "expected"), [(1, 1), (7, 7), (12, 12), (15, 15), (99, 15)])
def test_as_many_rows_as_the_target_are_kept(target: int, expected: int, make_row: MakeRow, select: Select) -> None:
    rows = of_prompts(make_row, 5, 4)
    rows = [{**row, "verified": row["sample_index"] != 3} for row in rows]
    selection = select(rows, selection={"target_rows": target}, validation_fraction=0.2)
    assert (selection.splits >= 0).sum() == expected
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
def test_a_higher_target_only_adds_rows(prompts: list[int], fewer: int, more: int, seed: int, frame: Frame) -> None:
    ids = np.random.default_rng(seed).permutation(len(prompts)).astype(np.uint64) + np.uint64(1)
    rows = frame(id=ids, prompt=prompts, tag=["math"] * len(prompts)).assign(preference=np.arange(len(prompts)))
    remaining = np.ones(len(prompts), bool)
    for drops in (
        lambda most: over_target(rows, remaining, most),
        lambda most: over_quota(rows, remaining, {"math": most}),
    ):
        few, many = ~drops(fewer), ~drops(fewer + more)
        assert (few.sum(), many.sum()) == (min(fewer, len(prompts)), min(fewer + more, len(prompts)))
        assert not (few & ~many).any()
    counts = Counter(prompts)
    firsts = [prompts[row] for row in spread(rows, remaining)[: len(counts)]]
    assert sorted(firsts) == sorted(counts)


def sides(selection: Selection, rows: list[Row]) -> dict[str, set[int]]:
    found: dict[str, set[int]] = {}
    for row, split in zip(rows, selection.splits.tolist(), strict=True):
        if split >= 0:
            found.setdefault(row["prompt_id"], set()).add(split)
    return found


def test_rows_of_one_prompt_share_a_split_that_its_id_alone_decides(make_row: MakeRow, select: Select) -> None:
    rows = [make_row(f"p{n % 60}", n // 60) for n in range(180)]
    found = sides(select(rows, validation_fraction=0.3), rows)
    assert found == {
        prompt: {int(unit_interval("validation", 0, prompt) < 0.3)} for prompt in {row["prompt_id"] for row in rows}
    }
    assert {frozenset(split) for split in found.values()} == {frozenset([0]), frozenset([1])}


def test_near_duplicate_prompts_share_a_split(make_row: MakeRow, select: Select) -> None:
    rows = [make_row(f"p{n:02}", prompt_cluster=f"p{n - n % 5:02}") for n in range(60)]
    found = sides(select(rows, validation_fraction=0.4), rows)
    assert all(found[f"p{n:02}"] == found[f"p{n - n % 5:02}"] for n in range(60))
    assert len({frozenset(split) for split in found.values()}) == 2


def test_split_is_independent_of_the_held_out_split_of_the_same_seed(make_row: MakeRow, select: Select) -> None:
    prompts = [Prompt(id=f"{number:064x}", messages=[]) for number in range(4000)]
    train, _ = split_prompts(prompts, 0.1, seed=0)
    selection = select([make_row(prompt.id) for prompt in train], validation_fraction=0.1)
    assert abs((selection.splits == 1).mean() - 0.1) < 5 * (0.1 * 0.9 / len(train)) ** 0.5


def test_a_tag_that_chance_leaves_out_gives_its_lowest_draw_if_it_has_clusters_enough(frame: Frame) -> None:
    draws = [0.9, 0.5, 0.3, 0.8, 0.7, 0.6, 0.1]
    rows = frame(prompt=np.arange(7), draw=draws, tag=["a"] * 4 + ["b"] * 2 + [None])
    kept = np.ones(7, bool)
    assert np.flatnonzero(in_validation(rows, kept, 0.25)).tolist() == [2, 6]
    kept[2] = False
    assert np.flatnonzero(in_validation(rows, kept, 0.25)).tolist() == [6]
    assert np.flatnonzero(in_validation(rows, kept, 0.4)).tolist() == [1, 6]


def test_a_cluster_is_of_the_tag_of_the_prompt_it_is_named_after(frame: Frame) -> None:
    # Prompt 7 names the cluster it is in with prompt 3, whose hash is lower.
    rows = frame(prompt=[3, 7, 8, 9], cluster=[7, 7, 8, 9], draw=[0.9, 0.9, 0.7, 0.8], tag=["b", "a", "a", "b"])
    kept = np.array([True, False, True, True])
    assert np.flatnonzero(in_validation(rows, kept, 0.5)).tolist() == [2]


CLUSTERS = st.dictionaries(
    st.integers(0, 10**6), st.tuples(st.floats(0, 1, exclude_max=True), st.sampled_from(["a", "b", None])), min_size=1
)


@given(before=CLUSTERS, added=CLUSTERS, fraction=st.floats(0.05, 0.95))
def test_added_rows_move_at_most_the_lowest_cluster_of_their_tags(
    before: dict[int, Any], added: dict[int, Any], fraction: float, frame: Frame
) -> None:
    def validating(clusters: dict[int, Any]) -> set[int]:
        draws, tags = zip(*clusters.values(), strict=True)
        rows = frame(prompt=list(clusters), draw=list(draws), tag=list(tags))
        return set(rows["cluster"][in_validation(rows, np.ones(len(rows), bool), fraction)].tolist())

    old, new = validating(before), validating({**added, **before})
    moved = {cluster for cluster in before if (cluster in old) != (cluster in new)}
    of_new_tags = {tag for cluster, (_, tag) in added.items() if cluster not in before}
    for tag in ("a", "b", None):
        of_tag = {cluster: draw for cluster, (draw, its) in before.items() if its == tag}
        moved_here = moved & of_tag.keys()
        assert len(moved_here) <= (tag in of_new_tags)
        assert all(of_tag[cluster] == min(of_tag.values()) >= fraction for cluster in moved_here)
    assert all((draw < fraction) <= (cluster in new) for cluster, (draw, _) in before.items())
