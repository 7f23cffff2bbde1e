import math

import numpy as np
import pytest

from stillhouse.evaluation.paired import paired_difference


def by_prompt(values: list[float]) -> dict[str, float]:
    return {f"p{number:04}": float(value) for number, value in enumerate(values)}


def test_right_and_wrong_are_tested_by_mcnemars_exact_test() -> None:
    model = by_prompt([1] * 8 + [0] * 2 + [1] * 30 + [0] * 10)
    reference = by_prompt([0] * 8 + [1] * 2 + [1] * 30 + [0] * 10)
    found = paired_difference(model, reference, confidence=0.95)
    assert found is not None
    assert found.test == "mcnemar"
    # Of 10 prompts that tell them apart, 8 or more fall to one side by chance with (45 + 10 + 1) / 1024.
    assert found.p_higher == pytest.approx(56 / 1024)
    assert found.p_lower == pytest.approx(1 - (10 + 1) / 1024)
    assert (found.num_prompts, found.mean, found.reference) == (50, 0.76, 0.64)
    assert found.difference == pytest.approx(0.12)
    assert 0.0 <= found.low < 0.05 < 0.2 < found.high < 0.3


def test_only_prompts_that_both_were_measured_on_count() -> None:
    found = paired_difference({"a": 1.0, "b": 1.0}, {"b": 0.0, "c": 1.0}, confidence=0.9)
    assert found is not None
    assert (found.num_prompts, found.difference, found.low, found.high) == (1, 1.0, 1.0, 1.0)
    assert paired_difference({"a": 1.0}, {"c": 1.0}, confidence=0.9) is None


def test_equal_models_differ_by_nothing_and_for_no_reason() -> None:
    for values in ([1, 0, 1, 1], [0.25, 0.5, 0.75]):
        found = paired_difference(by_prompt(values), by_prompt(values), confidence=0.95)
        assert found is not None
        assert (found.difference, found.low, found.high, found.p_higher, found.p_lower) == (0.0, 0.0, 0.0, 1.0, 1.0)


def test_rewards_are_tested_prompt_by_prompt_so_that_hard_prompts_do_not_hide_a_gain() -> None:
    rng = np.random.default_rng(1)
    hardness = rng.random(60)
    reference = by_prompt(list(hardness))
    model = by_prompt(list(hardness + 0.02 + 0.02 * rng.standard_normal(60)))
    found = paired_difference(model, reference, confidence=0.95)
    assert found is not None
    assert found.test == "permutation"
    assert found.p_higher < 0.001
    assert 0.01 < found.low < found.difference < found.high < 0.04
    turned = paired_difference(reference, model, confidence=0.95)
    assert turned is not None
    assert turned.p_lower == pytest.approx(found.p_higher)
    assert (turned.low, turned.high) == pytest.approx((-found.high, -found.low), abs=2e-3)


def test_the_same_values_give_the_same_figures_in_any_order() -> None:
    values = list(np.random.default_rng(2).random(30))
    model, reference = by_prompt(values), by_prompt(values[::-1])
    shuffled = dict(reversed(model.items()))
    assert paired_difference(model, reference, confidence=0.95) == paired_difference(
        shuffled, reference, confidence=0.95
    )


@pytest.mark.slow
@pytest.mark.parametrize("binary", [True, False])
def test_of_models_that_are_alike_one_in_ten_looks_better_at_ten_percent(binary: bool) -> None:
    rng = np.random.default_rng(3)
    found = []
    for _ in range(200):
        two = rng.random((2, 40))
        ours, theirs = (two < 0.6 if binary else two).astype(float)
        found.append(paired_difference(by_prompt(list(ours)), by_prompt(list(theirs)), confidence=0.9))
    share = np.mean([one is not None and one.p_higher < 0.1 for one in found])
    # Of 200 trials with a chance of 0.1 (exact tests are a little careful), within four standard deviations.
    assert 0.0 < share <= 0.1 + 4 * math.sqrt(0.09 / 200)
    covered = np.mean([one is not None and one.low <= 0.0 <= one.high for one in found])
    assert covered == pytest.approx(0.9, abs=4 * math.sqrt(0.09 / 200))
