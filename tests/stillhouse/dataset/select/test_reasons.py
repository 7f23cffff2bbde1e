import re

import numpy as np
import pytest

from stillhouse.config import DatasetConfig
from stillhouse.dataset.select.reasons import BITS, MEANINGS, STEPS, explanation, funnel, reasons_in
from stillhouse.types import StopReason


def test_every_end_but_the_regular_one_is_a_reason_and_every_reason_is_explained() -> None:
    assert {stop.value for stop in StopReason} - {"answered"} <= BITS.keys() == MEANINGS.keys()
    assert all(MEANINGS.values())


def test_keys_that_meanings_name_are_in_the_config() -> None:
    keys = [key for meaning in MEANINGS.values() for key in re.findall(r"dataset\.([\w.]+\w)", meaning)]
    assert len(keys) > 20
    for key in keys:
        section = DatasetConfig()
        for name in key.split("."):
            assert name in type(section).model_fields, key
            section = getattr(section, name)


@pytest.mark.parametrize("reasons", [[], ["error"], ["wrong", "surplus"], list(BITS)])
def test_reasons_go_into_one_number_and_come_back(reasons: list[str]) -> None:
    assert reasons_in(int(np.uint64(sum(BITS[reason] for reason in reasons)))) == reasons


def test_steps_have_each_reason_once() -> None:
    assert len({step for step, _ in STEPS}) == len(STEPS)
    assert sum(len(reasons) for _, reasons in STEPS) == len(BITS)


def test_funnel_counts_what_no_reason_so_far_speaks_against() -> None:
    bits = [0, BITS["wrong"], BITS["wrong"] | BITS["error"], BITS["surplus"]]
    left = dict(funnel(np.array(bits, np.uint64)))
    steps = ("finished", "not wrong", "within the quota of its tag", "within the target")
    assert [left[step] for step in steps] == [3, 2, 2, 1]


def test_explanation_tells_the_commonest_reason_first_and_what_it_means() -> None:
    text = explanation(np.array([BITS["wrong"], BITS["wrong"] | BITS["too_long"]], np.uint64))
    assert "Reasons: wrong 2, too_long 1\n  wrong: " in text
    assert "dataset.filters.drop_wrong" in text
    assert "       0  not wrong\n" in text
