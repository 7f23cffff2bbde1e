from itertools import combinations

import pytest

from stillhouse.evaluation.pass_at_k import mean_pass_at_k, pass_at_k


@pytest.mark.parametrize("num_samples", [1, 2, 5, 7])
def test_estimate_is_the_share_of_all_draws_that_hold_a_right_one(num_samples: int) -> None:
    for num_right in range(num_samples + 1):
        verdicts = [index < num_right for index in range(num_samples)]
        for k in range(1, num_samples + 1):
            draws = list(combinations(verdicts, k))
            assert pass_at_k(num_samples, num_right, k) == pytest.approx(sum(map(any, draws)) / len(draws))


@pytest.mark.parametrize(("num_samples", "num_right", "k"), [(3, 1, 4), (3, 1, 0), (3, 4, 1), (3, -1, 1)])
def test_impossible_counts_are_refused(num_samples: int, num_right: int, k: int) -> None:
    with pytest.raises(ValueError, match=f"pass@{k}"):
        pass_at_k(num_samples, num_right, k)


def test_means_over_prompts_leave_out_those_with_too_few_trajectories() -> None:
    groups = [[True, False, False, False], [True, True], [False]]
    means = mean_pass_at_k(groups)
    assert list(means) == ["1", "2", "4"]
    assert means["1"] == pytest.approx((0.25 + 1.0 + 0.0) / 3)
    assert means["2"] == pytest.approx((0.5 + 1.0) / 2)
    assert means["4"] == 1.0


def test_one_trajectory_a_prompt_has_no_pass_at_k() -> None:
    assert mean_pass_at_k([[True], [False]]) == {}
    assert mean_pass_at_k([]) == {}
