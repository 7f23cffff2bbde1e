import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from stillhouse.config import OnPolicyConfig
from stillhouse.training.on_policy.algorithms import algorithm_of
from stillhouse.training.on_policy.algorithms.grpo import reward_advantages
from stillhouse.training.on_policy.batches.credit import with_advantages
from stillhouse.training.on_policy.scored import ScoredSample
from tests.stillhouse.training.sections import on_policy_of


def config(**settings: Any) -> OnPolicyConfig:
    return on_policy_of({"group_size": 4, "reward_coef": 1.0, **settings})


def advantages(rewards: Sequence[float], estimator: str) -> list[float]:
    return reward_advantages(rewards, config(adv_estimator=estimator))


def credited(
    samples: Sequence[ScoredSample], rewards: Sequence[float | None], settings: OnPolicyConfig
) -> list[ScoredSample]:
    return with_advantages(samples, rewards, algorithm_of(settings))


def sampled_advantages(sample: ScoredSample, settings: OnPolicyConfig) -> list[float]:
    return algorithm_of(settings).advantages_when_sampled(sample)


def scored(prompt_id: str, mask: Sequence[int], seed: int, kl_coef: float = 1.0) -> ScoredSample:
    draw = random.Random(seed)
    sampling, teacher = ([draw.uniform(-3, 0) if is_sampled else 0.0 for is_sampled in mask] for _ in range(2))
    return ScoredSample(
        token_ids=list(range(len(mask))),
        loss_mask=[bool(is_sampled) for is_sampled in mask],
        prompt_id=prompt_id,
        sampling_logprobs=sampling,
        teacher="t",
        kl_coef=kl_coef,
        teacher_logprobs=teacher,
    )


def kls(sample: ScoredSample) -> list[float]:
    assert sample.sampling_logprobs is not None
    assert sample.teacher_logprobs is not None
    both = zip(sample.sampling_logprobs, sample.teacher_logprobs, sample.loss_mask, strict=True)
    return [student - teacher for student, teacher, is_sampled in both if is_sampled]


def at_mask(sample: ScoredSample) -> list[float]:
    assert sample.advantages is not None
    assert all(value == 0.0 for value, is_on in zip(sample.advantages, sample.loss_mask, strict=True) if not is_on)
    return [value for value, is_on in zip(sample.advantages, sample.loss_mask, strict=True) if is_on]


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
    assert advantages([1.0, 0.0, 0.0, 0.0], estimator) == pytest.approx(expected)


@pytest.mark.parametrize("estimator", ["grpo", "rloo"])
def test_a_group_of_equal_rewards_has_no_advantage(estimator: str):
    assert advantages([0.1] * 7, estimator) == [0.0] * 7
    assert advantages([0.3], estimator) == [0.0]


def test_leave_one_out_is_the_mean_baseline_times_g_over_g_minus_1_and_grpo_has_no_unit():
    rewards = [0.5, 2.0, -1.0]
    assert advantages(rewards, "rloo") == pytest.approx([1.5 * (reward - 0.5) for reward in rewards])
    scaled = advantages([1000.0 * reward + 7.0 for reward in rewards], "grpo")
    assert scaled == pytest.approx(advantages(rewards, "grpo"), rel=1e-3)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [({}, [0.3, 0.6]), ({"adv_clip": 0.4}, [0.3, 0.4])],
    ids=["whole", "clipped"],
)
def test_the_advantage_at_sampling_is_the_fixed_part_less_the_kl(settings: dict[str, Any], expected: list[float]):
    sample = ScoredSample(
        [7, 8, 9], [False, True, True], "p", sampling_logprobs=[0.0, -1.0, -2.0], kl_coef=0.1,
        teacher_logprobs=[0.0, -3.0, -1.0], advantages=[0.0, 0.5, 0.5],
    )  # fmt: skip
    assert sampled_advantages(sample, config(**settings)) == pytest.approx([0.0, *expected])
    assert sampled_advantages(replace(sample, teacher_logprobs=None), config()) == [0.0, 0.5, 0.5]


def test_each_group_is_compared_with_itself_alone_and_unknown_rewards_with_nothing():
    # Groups need not stand together.
    samples = [scored(prompt, [0, 1, 1], seed) for seed, prompt in enumerate("pqpqpr")]
    made = credited(samples, [1.0, 8.0, 0.0, 4.0, None, 3.0], config(adv_estimator="rloo", reward_coef=1.0))
    assert [at_mask(sample)[0] for sample in made] == [1.0, 4.0, -1.0, -4.0, 0.0, 0.0]
