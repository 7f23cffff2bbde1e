from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stillhouse.config import DatasetConfig
from stillhouse.dataset.select.select import Selection
from stillhouse.dataset.select.split import validates
from stillhouse.prompts import split_prompts
from stillhouse.store.fingerprint import unit_interval
from stillhouse.types import Prompt

Row = dict[str, Any]
Select = Callable[..., Selection]


def sides(selection: Selection, rows: list[Row]) -> dict[str, set[int]]:
    found: dict[str, set[int]] = {}
    for row, split in zip(rows, selection.splits.tolist(), strict=True):
        if split >= 0:
            found.setdefault(row["prompt_id"], set()).add(split)
    return found


def test_rows_of_one_prompt_share_a_split_that_its_id_alone_decides(
    make_row: Callable[..., Row], select: Select
) -> None:
    rows = [make_row(f"p{n % 60}", n // 60) for n in range(180)]
    found = sides(select(rows, validation_fraction=0.3, split_seed=5), rows)
    assert found == {
        prompt: {int(unit_interval("validation", 5, prompt) < 0.3)} for prompt in {row["prompt_id"] for row in rows}
    }
    assert {frozenset(split) for split in found.values()} == {frozenset([0]), frozenset([1])}


def test_near_duplicate_prompts_share_a_split(make_row: Callable[..., Row], select: Select) -> None:
    rows = [make_row(f"p{n:02}", prompt_cluster=f"p{n - n % 5:02}") for n in range(60)]
    found = sides(select(rows, validation_fraction=0.4), rows)
    assert all(found[f"p{n:02}"] == found[f"p{n - n % 5:02}"] for n in range(60))
    assert len({frozenset(split) for split in found.values()}) == 2


def test_split_is_independent_of_the_held_out_split_of_the_same_seed(
    make_row: Callable[..., Row], select: Select
) -> None:
    prompts = [Prompt(id=f"{number:064x}", messages=[]) for number in range(4000)]
    train, _ = split_prompts(prompts, 0.1, seed=0)
    selection = select([make_row(prompt.id) for prompt in train], validation_fraction=0.1)
    assert abs((selection.splits == 1).mean() - 0.1) < 5 * (0.1 * 0.9 / len(train)) ** 0.5


def test_a_tag_that_chance_leaves_out_gives_its_lowest_draw_if_it_has_clusters_enough(
    frame: Callable[..., pd.DataFrame],
) -> None:
    draws = [0.9, 0.5, 0.3, 0.8, 0.7, 0.6, 0.1]
    rows = frame(prompt=np.arange(7), draw=draws, tag=["a"] * 4 + ["b"] * 2 + [None])
    kept = np.ones(7, bool)
    assert np.flatnonzero(validates(rows, kept, 0.25)).tolist() == [2, 6]
    kept[2] = False
    assert np.flatnonzero(validates(rows, kept, 0.25)).tolist() == [6]
    assert np.flatnonzero(validates(rows, kept, 0.4)).tolist() == [1, 6]


def test_a_cluster_is_of_the_tag_of_the_prompt_it_is_named_after(frame: Callable[..., pd.DataFrame]) -> None:
    # Prompt 7 names the cluster it is in with prompt 3, whose hash is lower.
    rows = frame(prompt=[3, 7, 8, 9], cluster=[7, 7, 8, 9], draw=[0.9, 0.9, 0.7, 0.8], tag=["b", "a", "a", "b"])
    kept = np.array([True, False, True, True])
    assert np.flatnonzero(validates(rows, kept, 0.5)).tolist() == [2]


def test_no_fraction_no_validation(make_row: Callable[..., Row], select: Select) -> None:
    assert (select([make_row(f"p{n}") for n in range(50)], validation_fraction=0.0).splits == 0).all()


CLUSTERS = st.dictionaries(
    st.integers(0, 10**6), st.tuples(st.floats(0, 1, exclude_max=True), st.sampled_from(["a", "b", None])), min_size=1
)


@given(before=CLUSTERS, added=CLUSTERS, fraction=st.floats(0.05, 0.95))
def test_adding_rows_moves_at_most_the_lowest_cluster_of_their_own_tags(
    before: dict[int, Any], added: dict[int, Any], fraction: float, frame: Callable[..., pd.DataFrame]
) -> None:
    def validating(clusters: dict[int, Any]) -> set[int]:
        draws, tags = zip(*clusters.values(), strict=True)
        rows = frame(prompt=list(clusters), draw=list(draws), tag=list(tags))
        return set(rows["cluster"][validates(rows, np.ones(len(rows), bool), fraction)].tolist())

    old, new = validating(before), validating({**added, **before})
    moved = {cluster for cluster in before if (cluster in old) != (cluster in new)}
    of_new_tags = {tag for cluster, (_, tag) in added.items() if cluster not in before}
    for tag in ("a", "b", None):
        of_tag = {cluster: draw for cluster, (draw, its) in before.items() if its == tag}
        moved_here = moved & of_tag.keys()
        assert len(moved_here) <= (tag in of_new_tags)
        assert all(of_tag[cluster] == min(of_tag.values()) >= fraction for cluster in moved_here)
    assert all((draw < fraction) <= (cluster in new) for cluster, (draw, _) in before.items())


@pytest.mark.parametrize("fraction", [0.05, 0.5])
def test_default_config_splits_as_the_fraction_says(
    fraction: float, make_row: Callable[..., Row], select: Select
) -> None:
    rows = [make_row(f"p{n}") for n in range(2000)]
    share = (select(rows, **{**DatasetConfig().model_dump(), "validation_fraction": fraction}).splits == 1).mean()
    assert abs(share - fraction) < 5 * (fraction * (1 - fraction) / 2000) ** 0.5
