from typing import Any

from stillhouse.config import OnPolicyConfig
from stillhouse.training.on_policy.sampling.window import is_hit, next_window


def config(**prune: Any) -> OnPolicyConfig:
    return OnPolicyConfig.model_validate({"prune": {"min_overlap": 0.7, "window": 64, "window_step": 8, **prune}})


def windows(hit_shares: list[float]) -> list[float]:
    """The windows of batches of which each is measured before the next."""
    metrics, sizes = next_window(config(), None), []
    for share in hit_shares:
        metrics = next_window(config(), {**metrics, "window_hit_share": share})
        sizes.append(metrics["window_tokens"])
    return sizes


def test_a_window_grows_while_a_tenth_of_the_rollouts_are_reliable_to_its_end():
    assert windows([1.0, 0.1, 0.09]) == [72, 80, 80]


def test_it_shrinks_after_three_batches_in_a_row_that_are_not_and_never_below_the_first():
    assert windows([1.0, 1.0, 0.0, 0.0, 0.0, 0.0]) == [72, 80, 80, 80, 72, 72]
    assert windows([1.0, 0.0, 0.0, 1.0, 0.0, 0.0]) == [72, 72, 72, 80, 80, 80]
    assert windows([0.0] * 7) == [64] * 7


def test_a_rollout_hits_within_a_step_of_the_end_tokens_without_loss_counted():
    metrics = next_window(config(), None)
    assert [is_hit(count, metrics, config()) for count in (55, 56, 64)] == [False, True, True]
    assert is_hit(54, metrics, config().model_copy(update={"skip_first_n_tokens": 2}))


def test_without_a_window_there_is_none_to_hit():
    free = OnPolicyConfig.model_validate({"prune": {"min_overlap": 0.7}})
    assert next_window(free, None) == {}
    assert not is_hit(99, {}, free)
