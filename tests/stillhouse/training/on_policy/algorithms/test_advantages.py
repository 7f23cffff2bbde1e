from collections.abc import Sequence
from typing import Any

import pytest

from stillhouse.config import OnPolicyConfig
from stillhouse.training.on_policy.algorithms import algorithm_of
from stillhouse.training.on_policy.batches.credit import advantages
from tests.stillhouse.training.on_policy.tables import One, table_of
from tests.stillhouse.training.sections import on_policy_of


def config(**settings: Any) -> OnPolicyConfig:
    return on_policy_of({"group_size": 4, "reward_coef": 1.0, **settings})


def of_group(rewards: Sequence[float], estimator: str) -> list[float]:
    return algorithm_of(config(adv_estimator=estimator)).advantages(rewards)


@pytest.mark.parametrize(
    ("estimator", "expected"),
    [
        # mean 0.25, sample standard deviation 0.5
        ("grpo", [0.75 / 0.5001, -0.25 / 0.5001, -0.25 / 0.5001, -0.25 / 0.5001]),
        ("rloo", [1.0, -1 / 3, -1 / 3, -1 / 3]),
        ("reinforce", [1.0, 0.0, 0.0, 0.0]),
    ],
)
def test_rewards_become_advantages_by_hand(estimator: str, expected: list[float]):
    assert of_group([1.0, 0.0, 0.0, 0.0], estimator) == pytest.approx(expected)


@pytest.mark.parametrize("estimator", ["grpo", "rloo"])
def test_a_group_of_equal_rewards_has_no_advantage(estimator: str):
    assert of_group([0.1] * 7, estimator) == [0.0] * 7
    assert of_group([0.3], estimator) == [0.0]


def test_leave_one_out_is_the_mean_baseline_times_g_over_g_minus_1_and_grpo_has_no_unit():
    rewards = [0.5, 2.0, -1.0]
    assert of_group(rewards, "rloo") == pytest.approx([1.5 * (reward - 0.5) for reward in rewards])
    scaled = of_group([1000.0 * reward + 7.0 for reward in rewards], "grpo")
    assert scaled == pytest.approx(of_group(rewards, "grpo"), rel=1e-3)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [({}, [0.3, 0.6]), ({"adv_clip": 0.4}, [0.3, 0.4])],
    ids=["whole", "clipped"],
)
def test_the_advantage_at_sampling_is_the_fixed_part_less_the_kl(settings: dict[str, Any], expected: list[float]):
    ones = [
        One(
            [7, 8, 9], [0, 1, 1], sampling=[0.0, -1.0, -2.0], kl_coef=0.1, scored=scored, advantages=[0.0, 0.5, 0.5]
        )
        for scored in ([0.0, -3.0, -1.0], None)
    ]  # fmt: skip
    seen = algorithm_of(config(**settings)).advantages_when_sampled(table_of(ones))
    assert seen[:3].tolist() == pytest.approx([0.0, *expected])
    bound = settings.get("adv_clip", 1.0)
    assert seen[3:].tolist() == [0.0, min(0.5, bound), min(0.5, bound)]


def test_each_group_is_compared_with_itself_alone_and_unknown_rewards_with_nothing():
    # Groups need not stand together.
    table = table_of([One([5, 6, 7], [0, 1, 1], prompt_id) for prompt_id in "pqpqpr"])
    settings = config(adv_estimator="rloo", reward_coef=1.0)
    made = advantages(table, [1.0, 8.0, 0.0, 4.0, None, 3.0], algorithm_of(settings))
    assert made is not None
    assert made.reshape(6, 3).tolist() == [[0.0, credit, credit] for credit in (1.0, 4.0, -1.0, -4.0, 0.0, 0.0)]
    assert advantages(table, [None] * 6, algorithm_of(on_policy_of({}))) is None
