import numpy as np
import pytest

from stillhouse.config import TokenWeightsConfig
from stillhouse.training.on_policy.tokens.figures import TokenFigures
from stillhouse.training.on_policy.tokens.importance import important_tokens


def figures(entropy: list[float], kl: list[float] | None = None) -> TokenFigures:
    return TokenFigures(np.array(entropy), None, None if kl is None else np.array(kl))


def test_a_share_of_each_trajectorys_own_tokens_is_kept_those_of_the_highest_entropy():
    masks = important_tokens(
        [figures([0.1, 2.0, 0.3, 1.0]), figures([0.0, 0.01, 0.02]), figures([])], TokenWeightsConfig(by="entropy")
    )
    assert [mask.tolist() for mask in masks] == [[False, True, False, True], [False, True, True], []]


def test_a_sure_token_that_the_teacher_finds_wrong_is_found_by_soft_or_alone():
    batch = [figures([0.0, 1.0, 0.2, 0.1], [9.0, 0.5, 0.1, 0.0])]
    (by_entropy,) = important_tokens(batch, TokenWeightsConfig(by="entropy"))
    (by_either,) = important_tokens(batch, TokenWeightsConfig(by="soft_or"))
    assert by_entropy.tolist() == [False, True, True, False]
    assert by_either.tolist() == [True, True, False, False]


def test_soft_or_is_the_probability_of_either_of_two_scaled_figures():
    draw = np.random.default_rng(1)
    entropy, kl = draw.random(200), draw.random(200)
    (mask,) = important_tokens([figures(entropy.tolist(), kl.tolist())], TokenWeightsConfig(by="soft_or", keep=0.3))
    clipped = np.minimum(entropy, np.quantile(entropy, 0.98))
    h, d = ((values - values.min()) / (values.max() - values.min()) for values in (clipped, kl))
    scores = 1 - (1 - h) * (1 - d)
    assert mask.sum() == 60
    assert scores[mask].min() >= scores[~mask].max()


def test_the_scale_is_that_of_the_whole_batch_and_one_wild_token_does_not_set_it():
    quiet = figures([0.5, 0.0] * 50, [0.0, 1.0] * 50)
    (mask, _) = important_tokens([quiet, figures([1000.0], [0.0])], TokenWeightsConfig(by="soft_or", keep=0.5))
    # With the wild token's scale 0.5 nats would be nothing beside any divergence.
    assert mask.sum() == 50
    assert mask[::2].any()


def test_equal_tokens_are_taken_from_the_first_and_none_is_left_without():
    masks = important_tokens([figures([0.0] * 4), figures([0.0])], TokenWeightsConfig(by="entropy", keep=0.2))
    assert [mask.tolist() for mask in masks] == [[True, False, False, False], [True]]


@pytest.mark.parametrize("by", ["entropy", "soft_or"])
def test_without_a_teacher_entropy_decides(by: str):
    (mask,) = important_tokens([figures([0.0, 3.0, 1.0, 2.0])], TokenWeightsConfig(by=by))  # type: ignore[arg-type]
    assert mask.tolist() == [False, True, False, True]
