import random

import numpy as np
import pytest
import torch

from stillhouse.training.model.microbatches import collate, microbatch_groups
from tests.stillhouse.training.on_policy.tables import One, table_of

TABLE = table_of(
    [
        One([1, 2, 3], [0, 1, 1], "a", [0.0, -1.0, -2.0], [0.0, -1.5, -1.0], teacher="t"),
        One([4], [0], "b", part=1),
        One([5, 6], [0, 1], "c", [0.0, -3.0], part=1, tag="x"),
    ],
    num_parts=2,
)


def test_a_row_is_a_sample_whose_tokens_are_parts_of_the_columns() -> None:
    first, _, last = TABLE.rows()
    assert (first.token_ids.tolist(), first.loss_mask.tolist()) == ([1, 2, 3], [False, True, True])  # type: ignore[attr-defined]
    assert np.shares_memory(last.token_ids, TABLE.token_ids)
    assert (last.prompt_id, last.tag, last.number, last.tokens) == ("c", "x", 2, slice(4, 6))
    assert [row.prompt_id for row in TABLE.rows(1)] == ["b", "c"]


def test_columns_of_trajectories_are_spread_over_their_tokens() -> None:
    assert TABLE.counts.tolist() == [2, 0, 1]
    assert TABLE.spread(np.array([7, 8, 9])).tolist() == [7, 7, 7, 8, 9, 9]


def test_values_stand_at_the_sampled_tokens_and_there_is_one_for_each() -> None:
    placed = TABLE.placed({0: [-1.0, -2.0], 1: []})
    np.testing.assert_array_equal(placed, [0.0, -1.0, -2.0, 0.0, np.nan, np.nan])
    for count in (1, 3):
        with pytest.raises(ValueError, match=f"{count} values for 2"):
            TABLE.placed({0: [-1.0] * count})


def test_what_a_teacher_did_not_score_has_no_kl() -> None:
    np.testing.assert_array_equal(TABLE.sampled_kl, [0.0, 0.5, -1.0, np.nan, np.nan, np.nan])
    assert TABLE.teacher_scores(0).logprobs == [-1.5, -1.0]


def test_a_batch_of_which_nothing_could_be_sampled_is_a_table() -> None:
    table = table_of([])
    assert (len(table), table.rows(), table.counts.tolist(), table.placed({}).tolist()) == (0, [], [], [])


@pytest.mark.parametrize("packing", [False, True])
@pytest.mark.parametrize("max_tokens", [2, 40, 10_000])
def test_every_token_has_its_own_values_in_whatever_microbatch(packing: bool, max_tokens: int) -> None:
    """Prompts and turns of many lengths; what is known of a token tells its place in the table."""
    draw = random.Random(2)
    masks = [
        [0] * draw.randint(1, 6) + [1] * draw.randint(1, 9) + [0] * 3 + [1] * draw.randint(1, 4) for _ in range(20)
    ]
    table = table_of([One([0] * len(mask), mask) for mask in masks])
    places = np.arange(len(table.token_ids))
    table.token_ids = places.astype(np.int32)
    values = {"sampling": -places.astype(np.float64), "teacher": places * table.loss_mask / 4}
    seen = []
    for group in microbatch_groups(table.rows(), max_tokens, packing=packing):
        batch = collate(
            group,
            lambda row: {name: column[row.tokens] for name, column in values.items()},  # type: ignore[attr-defined]
            torch.device("cpu"),
            packing=packing,
        )
        assert torch.equal(batch.values["sampling"], -batch.targets_N.float())
        assert torch.equal(batch.values["teacher"], batch.targets_N / 4)
        assert torch.equal(batch.inputs_BT.flatten()[batch.target_places_N], batch.targets_N - 1)
        seen += batch.targets_N.tolist()
    assert sorted(seen) == np.flatnonzero(table.loss_mask).tolist()
