import numpy as np
import pytest

from stillhouse.config import DatasetConfig
from stillhouse.dataset.select.filters import FILTERS, STEPS, explanation, funnel
from stillhouse.dataset.select.reasons import BITS, DropReason, reasons_in
from stillhouse.types import StopReason


def test_every_end_but_the_regular_one_is_a_reason_and_every_reason_is_explained() -> None:
    assert {stop.value for stop in StopReason} - {"answered"} <= {reason.value for reason in DropReason}
    assert all(reason.meaning for reason in DropReason)


def test_keys_that_meanings_name_are_in_the_config() -> None:
    for reason in DropReason:
        for word in reason.meaning.replace(",", " ").replace(":", " ").split():
            section = DatasetConfig()
            path = word.split(".")
            for key in path[1:] if path[0] == "dataset" else ():
                assert key in type(section).model_fields, word
                section = getattr(section, key)


@pytest.mark.parametrize("reasons", [[], [DropReason.ERROR], [DropReason.WRONG, DropReason.SURPLUS], list(DropReason)])
def test_reasons_go_into_one_number_and_come_back(reasons: list[DropReason]) -> None:
    assert reasons_in(int(np.uint64(sum(BITS[reason] for reason in reasons)))) == reasons


def test_steps_have_each_reason_once_and_filters_under_their_step() -> None:
    assert sorted(reason for _, reasons in STEPS for reason in reasons) == sorted(DropReason)
    assert len({step for step, _ in STEPS}) == len(STEPS)
    assert all(rule.reason in dict(STEPS)[rule.step] for rule in FILTERS)


def test_funnel_counts_what_no_reason_so_far_speaks_against() -> None:
    bits = [0, BITS[DropReason.WRONG], BITS[DropReason.WRONG] | BITS[DropReason.ERROR], BITS[DropReason.SURPLUS]]
    left = dict(funnel(np.array(bits, np.uint64)))
    assert (left["finished"], left["not wrong"], left["within the quota of its tag"], left["within the target"]) == (
        3,
        2,
        2,
        1,
    )


def test_explanation_tells_the_commonest_reason_first_and_what_it_means() -> None:
    text = explanation(
        np.array([BITS[DropReason.WRONG], BITS[DropReason.WRONG] | BITS[DropReason.TOO_LONG]], np.uint64)
    )
    assert "Reasons: wrong 2, too_long 1\n  wrong: " in text
    assert "dataset.filters.drop_wrong" in text
    assert "       0  not wrong\n" in text
