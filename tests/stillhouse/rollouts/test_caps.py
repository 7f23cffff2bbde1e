from stillhouse.config import RolloutsConfig
from stillhouse.rollouts.caps import RolloutCaps
from stillhouse.types import Turn


def caps(**config: int) -> RolloutCaps:
    return RolloutCaps(RolloutsConfig(max_tokens=1000, **config))


def turn(prompt: int | None, completion: int | None) -> Turn:
    usage = {"prompt_tokens": prompt, "completion_tokens": completion}
    return Turn("stop", {key: num for key, num in usage.items() if num is not None}, 0.1, "m")  # type: ignore[arg-type]


def test_without_caps_a_request_is_bounded_by_the_config_alone() -> None:
    free = caps()
    free.count(turn(10**9, 10**9), 10**9, 1000)
    assert free.allowed_tokens(10**9) == 1000


def test_a_request_is_bounded_to_what_is_left() -> None:
    spent = caps(max_rollout_tokens=2000)
    assert spent.allowed_tokens(300) == 1000
    spent.count(turn(100, 900), 300, 1000)
    # 1,000 are gone; the next prompt is the last one with its completion, 1,000 again: nothing is left.
    assert spent.allowed_tokens(300) is None
    spent = caps(max_rollout_tokens=2000)
    spent.count(turn(100, 500), 300, 1000)
    assert spent.allowed_tokens(300) == 800


def test_text_added_since_counts_by_the_tokens_it_took_before() -> None:
    spent = caps(max_rollout_tokens=2000)
    spent.count(turn(100, 100), 400, 1000)
    assert spent.allowed_tokens(400 + 2400) == 2000 - 200 - (200 + 600)


def test_too_little_for_a_useful_answer_is_nothing() -> None:
    assert caps(max_rollout_tokens=164).allowed_tokens(300) == 64
    assert caps(max_rollout_tokens=163).allowed_tokens(300) is None
    short = RolloutCaps(RolloutsConfig(max_tokens=10, max_rollout_tokens=110))
    assert (short.allowed_tokens(300), short.allowed_tokens(303)) == (10, None)


def test_what_was_not_reported_counts_as_the_most_it_can_have_been() -> None:
    spent = caps(max_rollout_tokens=3000)
    spent.count(turn(None, None), 300, 1000)
    assert spent.allowed_tokens(300) == 3000 - 1100 - 1100
