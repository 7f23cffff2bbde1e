import numpy as np
import pytest

from stillhouse.evaluation.paired import paired_difference


def by_prompt(values: list[float]) -> dict[str, float]:
    return {f"p{number:04}": float(value) for number, value in enumerate(values)}


def test_right_and_wrong_are_tested_by_mcnemars_exact_test() -> None:
    model = by_prompt([1] * 8 + [0] * 2 + [1] * 30 + [0] * 10)
    reference = by_prompt([0] * 8 + [1] * 2 + [1] * 30 + [0] * 10)
    result = paired_difference(model, reference)
    assert result is not None
    assert result.test == "mcnemar"
    # Of 10 prompts that tell them apart, 8 or more fall to one side by chance with (45 + 10 + 1) / 1024.
    assert result.p_higher == pytest.approx(56 / 1024)
    assert result.p_lower == pytest.approx(1 - (10 + 1) / 1024)
    assert (result.num_prompts, result.mean, result.reference) == (50, 0.76, 0.64)
    assert result.difference == pytest.approx(0.12)
    assert 0.0 <= result.low < 0.05 < 0.2 < result.high < 0.3


def test_only_prompts_that_both_were_measured_on_count() -> None:
    result = paired_difference({"a": 1.0, "b": 1.0}, {"b": 0.0, "c": 1.0})
    assert result is not None
    assert (result.num_prompts, result.difference, result.low, result.high) == (1, 1.0, 1.0, 1.0)
    assert paired_difference({"a": 1.0}, {"c": 1.0}) is None


def test_equal_models_differ_by_nothing_and_for_no_reason() -> None:
    for values in ([1, 0, 1, 1], [0.25, 0.5, 0.75]):
        result = paired_difference(by_prompt(values), by_prompt(values))
        assert result is not None
        assert (result.difference, result.low, result.high, result.p_higher, result.p_lower) == (
            0.0,
            0.0,
            0.0,
            1.0,
            1.0,
        )


def test_differences_that_are_alike_but_for_rounding_have_an_interval() -> None:
    model, reference = ({f"p{place}": start + place / 100 for place in range(20)} for start in (0.1, 0.7))
    difference = paired_difference(model, reference)
    assert difference is not None
    assert (difference.low, difference.high) == pytest.approx((-0.6, -0.6))


def test_rewards_are_tested_prompt_by_prompt_so_that_hard_prompts_do_not_hide_a_gain() -> None:
    rng = np.random.default_rng(1)
    hardness = rng.random(60)
    reference = by_prompt(list(hardness))
    model = by_prompt(list(hardness + 0.02 + 0.02 * rng.standard_normal(60)))
    result = paired_difference(model, reference)
    assert result is not None
    assert result.test == "permutation"
    assert result.p_higher < 0.001
    assert 0.01 < result.low < result.difference < result.high < 0.04
    turned = paired_difference(reference, model)
    assert turned is not None
    assert turned.p_lower == pytest.approx(result.p_higher)
    assert (turned.low, turned.high) == pytest.approx((-result.high, -result.low), abs=2e-3)


def test_the_same_values_give_the_same_figures_in_any_order() -> None:
    values = list(np.random.default_rng(2).random(30))
    model, reference = by_prompt(values), by_prompt(values[::-1])
    first, second = (paired_difference(order, reference) for order in (model, dict(reversed(model.items()))))
    assert first == second
