from stillhouse.config import RolloutsConfig
from stillhouse.inference.endpoint import Price
from stillhouse.rollouts.caps import RolloutCaps
from stillhouse.types import Turn

PRICE = Price(prompt=1.0, completion=4.0)


def caps(price: Price | None = PRICE, **config: float) -> RolloutCaps:
    return RolloutCaps(RolloutsConfig(max_tokens=1000, **config), price)  # type: ignore[arg-type]


def turn(prompt: int | None, completion: int | None, cost: float | None = None) -> Turn:
    usage = {"prompt_tokens": prompt, "completion_tokens": completion}
    return Turn("stop", {key: num for key, num in usage.items() if num is not None}, 0.1, "m", cost_usd=cost)  # type: ignore[arg-type]


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
    short = RolloutCaps(RolloutsConfig(max_tokens=10, max_rollout_tokens=110), None)
    assert (short.allowed_tokens(300), short.allowed_tokens(303)) == (10, None)


def test_money_bounds_a_completion_by_the_dearest_it_can_be() -> None:
    spent = caps(max_rollout_usd=0.001)
    # 0.0001 USD for 100 prompt tokens leaves 0.0009 USD, which buys 225 tokens.
    assert spent.allowed_tokens(300) == 225
    spent.count(turn(100, 100, cost=0.0005), 300, 225)
    assert spent.allowed_tokens(300) == 75
    spent.count(turn(100, 100, cost=0.0004), 300, 75)
    assert spent.allowed_tokens(300) is None


def test_what_was_not_reported_counts_as_the_most_it_can_have_been() -> None:
    spent = caps(max_rollout_tokens=3000)
    spent.count(turn(None, None), 300, 1000)
    assert spent.allowed_tokens(300) == 3000 - 1100 - 1100
    spent = caps(max_rollout_usd=0.01)
    spent.count(turn(100, 900), 300, 1000)
    # 0.0037 USD are gone by the price; 1,000 tokens of the next prompt take 0.001 USD, and 0.0053 USD buy 1,325.
    assert spent.allowed_tokens(300) == 1000
    spent.count(turn(1000, 500), 300, 1000)
    # Another 0.003 USD are gone; 1,500 tokens of prompt leave 0.0018 USD, which buy 450.
    assert spent.allowed_tokens(300) == 450


def test_free_completions_are_bounded_by_the_price_of_prompts_alone() -> None:
    free = caps(Price(prompt=1.0, completion=0.0), max_rollout_usd=0.0001)
    assert (free.allowed_tokens(300), free.allowed_tokens(303)) == (1000, None)
