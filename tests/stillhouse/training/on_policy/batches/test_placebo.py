"""What a placebo makes of a batch: scores of the right size that say nothing of their tokens."""

from dataclasses import replace

import numpy as np
import pytest

from stillhouse.config import OnPolicyConfig
from stillhouse.training.on_policy.algorithms import choose_algorithm
from stillhouse.training.on_policy.batches.placebo import with_placebo
from stillhouse.training.on_policy.masks import at_sampled_tokens
from stillhouse.training.on_policy.scored import ScoredSample


def sample(number: int, num_prompt: int, num_sampled: int, *, is_scored: bool = True) -> ScoredSample:
    rng = np.random.default_rng(number)
    mask = [False] * num_prompt + [True] * num_sampled
    student, teacher = (at_sampled_tokens((-rng.exponential(size=num_sampled)).tolist(), mask) for _ in range(2))
    return ScoredSample(
        token_ids=list(range(len(mask))),
        loss_mask=mask,
        prompt_id=str(number // 2),
        sampling_logprobs=student,
        teacher="teacher" if is_scored else None,
        kl_coef=0.5 if is_scored else 0.0,
        teacher_logprobs=teacher if is_scored else None,
    )


BATCH = [sample(0, 3, 40), sample(1, 1, 7), sample(2, 2, 5, is_scored=False), sample(3, 4, 1), sample(4, 2, 60)]


def kls(samples: list[ScoredSample]) -> np.ndarray:
    """d of all scored tokens of the batch."""
    return np.concatenate([np.compress(one.loss_mask, one.sampled_kl) for one in samples if one.sampled_kl])


def test_shuffled_scores_are_those_of_the_batch_at_other_tokens() -> None:
    made = with_placebo(BATCH, "shuffled", seed=3, index=2)
    before, after = kls(BATCH), kls(made)
    assert np.sort(after) == pytest.approx(np.sort(before), abs=1e-12)
    assert np.isclose(after, before).mean() < 0.1
    # Across trajectories, not within each alone.
    first = np.compress(made[0].loss_mask, made[0].sampled_kl)
    assert not np.isin(np.round(first, 9), np.round(before[:40], 9)).all()


def test_a_constant_is_one_negative_advantage_of_the_mean_size_of_the_scores() -> None:
    made = with_placebo(BATCH, "constant", seed=3, index=2)
    assert kls(made) == pytest.approx(np.abs(kls(BATCH)).mean(), abs=1e-12)
    algorithm = choose_algorithm(OnPolicyConfig(), has_teacher=True)
    advantages = np.compress(made[0].loss_mask, algorithm.advantages_when_sampled(made[0]))
    assert advantages == pytest.approx(-0.5 * np.abs(kls(BATCH)).mean())


@pytest.mark.parametrize("placebo", ["shuffled", "constant"])
def test_nothing_but_the_scores_is_changed_and_a_batch_made_again_gets_the_same(placebo) -> None:
    made = with_placebo(BATCH, placebo, seed=3, index=2)
    assert [replace(one, teacher_logprobs=None) for one in made] == [
        replace(one, teacher_logprobs=None) for one in BATCH
    ]
    assert made[2] == BATCH[2]
    assert all(value == 0.0 for value in (made[0].teacher_logprobs or [])[:3])
    assert with_placebo(BATCH, placebo, seed=3, index=2) == made


def test_another_batch_and_another_seed_shuffle_otherwise() -> None:
    made = [kls(with_placebo(BATCH, "shuffled", seed, index)) for seed, index in ((3, 2), (3, 3), (4, 2))]
    assert not np.allclose(made[0], made[1])
    assert not np.allclose(made[0], made[2])


def test_a_batch_that_no_teacher_scored_has_no_placebo() -> None:
    assert with_placebo([BATCH[2]], "shuffled", 0, 0) == [BATCH[2]]
    assert with_placebo([BATCH[2]], "constant", 0, 0) == [BATCH[2]]
    assert with_placebo([], "shuffled", 0, 0) == []
