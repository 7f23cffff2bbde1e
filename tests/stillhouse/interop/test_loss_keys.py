from typing import Any

import pytest

from stillhouse.interop.loss_keys import pop_excluded, pop_unread
from stillhouse.prompts.row import RowProblem


@pytest.mark.parametrize(
    ("keys", "is_learnt"),
    [
        ({}, True),
        ({"weight": 1}, True),
        ({"weight": 0}, False),
        ({"weight": 0.0}, False),
        ({"train": False}, False),
        ({"trainable": True}, True),
        ({"training": False}, False),
        ({"loss": None}, True),
        ({"loss": False, "weight": 0}, False),
        ({"loss_mask": 0}, False),
        ({"loss_mask": 1, "masked": None}, True),
    ],
)
def test_a_message_is_learnt_as_its_keys_say_and_keeps_none_of_them(keys: dict[str, Any], is_learnt: bool) -> None:
    messages = [{"role": "user", "content": "q", "weight": 0}, {"role": "assistant", "content": "a", **keys}]
    assert pop_excluded(messages) == (frozenset() if is_learnt else {1})
    assert messages == [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        ({"role": "assistant", "weight": 0.5}, r"messages\[0\]\.weight: .*float 0\.5"),
        ({"role": "assistant", "loss_mask": [0, 1]}, r"loss_mask: .*list \[0, 1\]"),
        ({"role": "assistant", "train": "no"}, "train: .*str 'no'"),
        ({"role": "assistant", "masked": True}, "masked: .*weight, train, .*bool True"),
        ({"role": "user", "train": True}, r"messages\[0\].train is on"),
    ],
)
def test_what_is_neither_on_nor_off_is_refused_by_name(message: dict[str, Any], problem: str) -> None:
    with pytest.raises(RowProblem, match=problem):
        pop_excluded([message])


@pytest.mark.parametrize(
    ("row", "keys"),
    [
        ({"chosen": "a", "rejected": "b"}, ["chosen", "rejected"]),
        ({"rejected": [], "images": None}, []),
        ({"label": True}, []),
        ({"label": 0}, []),
        ({"weight": 0.5, "sample_weight": 1}, ["weight"]),
    ],
)
def test_keys_of_a_row_that_change_what_is_learnt_are_listed(row: dict[str, Any], keys: list[str]) -> None:
    assert [unmapped.key for unmapped in pop_unread(row)] == keys


@pytest.mark.parametrize("row", [{"label": False}, {"images": ["a.png"]}, {"image": "a.png"}])
def test_a_row_of_which_nothing_can_be_learnt_is_refused(row: dict[str, Any]) -> None:
    with pytest.raises(RowProblem, match=next(iter(row))):
        pop_unread(row)
