from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stillhouse.inference.price import Price
from stillhouse.types import TokenUsage

USAGE: TokenUsage = {"prompt_tokens": 100, "cached_tokens": 60, "completion_tokens": 50, "reasoning_tokens": 20}


def test_cached_tokens_reasoning_and_requests_have_their_own_prices_or_those_of_what_they_are_part_of() -> None:
    price = Price(4.0, 10.0, cached_prompt=1.0, reasoning=20.0, request=0.5)
    assert price.of(USAGE) == pytest.approx((40 * 4 + 60 * 1 + 30 * 10 + 20 * 20) / 1e6 + 0.5)
    assert Price(4.0, 10.0).of(USAGE) == pytest.approx(900e-6)


def test_a_completion_of_unknown_length_has_no_known_cost() -> None:
    assert Price(4.0, 10.0).of({"prompt_tokens": 5}) is None


amounts = st.floats(0, 100)
prices = st.builds(
    Price, amounts, amounts, cached_prompt=st.none() | amounts, reasoning=st.none() | amounts, request=st.just(0.1)
)


@given(prices, st.integers(0, 9999), st.integers(0, 9999), st.data())
def test_no_completion_costs_more_than_the_worst_of_its_size(
    price: Price, prompt_tokens: int, completion_tokens: int, data: st.DataObject
) -> None:
    usage: TokenUsage = {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "cached_tokens": data.draw(st.integers(0, prompt_tokens)),
        "reasoning_tokens": data.draw(st.integers(0, completion_tokens)),
    }
    cost = price.of(usage)
    assert cost is not None
    assert cost <= price.worst(prompt_tokens, completion_tokens) * (1 + 1e-9)
    assert price.half().of(usage) == pytest.approx(cost / 2)


def test_a_prompt_above_a_threshold_is_charged_by_its_row_as_a_whole() -> None:
    price = Price(1.0, 4.0, cached_prompt=0.1, above={200: Price(2.0, 6.0, cached_prompt=0.2), 500: Price(3.0, 9.0)})
    short: TokenUsage = {"prompt_tokens": 200, "cached_tokens": 150, "completion_tokens": 10}
    assert price.of(short) == pytest.approx((50 + 15 + 40) / 1e6)
    assert price.of({**short, "prompt_tokens": 201}) == pytest.approx((51 * 2 + 150 * 0.2 + 60) / 1e6)
    assert price.of({"prompt_tokens": 501, "completion_tokens": 0}) == pytest.approx(1503 / 1e6)
    # The bound itself is among the longer prompts with some.
    assert price.worst(199, 0) == pytest.approx(199 / 1e6)
    assert price.worst(200, 0) == pytest.approx(400 / 1e6)


def test_what_is_written_to_a_cache_is_charged_once_and_by_its_lifetime() -> None:
    price = Price(1.0, 0.0, cached_prompt=0.1, cache_write=1.25, cache_write_long=2.0)
    usage: TokenUsage = {
        "prompt_tokens": 100,
        "completion_tokens": 0,
        "cached_tokens": 50,
        "cache_write_tokens": 30,
        "cache_write_long_tokens": 10,
    }
    assert price.of(usage) == pytest.approx((20 + 5 + 20 * 1.25 + 20) / 1e6)
    assert price.worst(100, 0) == pytest.approx(200 / 1e6)
    # A seller that charges for writes charges more for long ones; by how much is not known.
    assert replace(price, cache_write_long=None).of(usage) is None
    assert Price(1.0, 0.0).of(usage) == pytest.approx(100 / 1e6)


def test_the_tier_of_the_answer_decides_and_the_request_s_where_it_names_none() -> None:
    tiers = {"flex": Price(0.5, 0.5), "priority": Price(2.0, 2.0), "batch": Price(0.4, 0.4)}
    price = Price(1.0, 1.0, tiers=tiers)
    usage: TokenUsage = {"prompt_tokens": 1, "completion_tokens": 0}
    assert [price.of(usage, tier) for tier in (None, "default", "flex", "priority")] == [1e-6, 1e-6, 0.5e-6, 2e-6]
    assert replace(price, asked="flex").of(usage) == 0.5e-6
    assert replace(price, asked="flex").of(usage, "default") == 1e-6
    assert price.of(usage, "ultrafast") is None
    assert Price(1.0, 1.0).of(usage, "ultrafast") == 1e-6, "one price for all tiers"


@pytest.mark.parametrize(
    ("asked", "usd"), [(None, 2.0), ("auto", 2.0), ("default", 1.0), ("flex", 1.0), ("priority", 2.0)]
)
def test_the_reservation_is_of_the_dearest_tier_that_may_answer(asked: str | None, usd: float) -> None:
    price = Price(1.0, 1.0, tiers={"flex": Price(0.5, 0.5), "priority": Price(2.0, 2.0)}, asked=asked)
    assert price.worst(1_000_000, 0) == usd


def test_a_batch_costs_what_the_table_says_and_half_only_of_a_price_for_all_tiers() -> None:
    assert Price(4.0, 10.0, request=0.5).batch() == Price(2.0, 5.0, request=0.25)
    assert Price(4.0, 10.0, tiers={"batch": Price(3.0, 7.0)}).batch() == Price(3.0, 7.0)
    assert Price(4.0, 10.0, tiers={"flex": Price(3.0, 7.0)}).batch() is None


def test_a_tier_that_is_asked_for_and_has_no_price_is_unknown() -> None:
    table = Price(1.0, 1.0, tiers={"priority": Price(2.0, 2.0, gaps=("a",))}, gaps=("b",))
    assert replace(table, asked="flex").unknown == ("the service tier flex", "b")
    assert replace(table, asked="default").unknown == ("b",)
    assert table.unknown == ("b", "a"), "an account may be set to priority"
    assert replace(Price(1.0, 1.0), asked="flex").unknown == ()


def test_amounts_are_exact_to_the_picodollar() -> None:
    usage: TokenUsage = {"prompt_tokens": 3, "completion_tokens": 7}
    assert Price(0.1, 0.7).of(usage) == 0.0000052
    assert Price(0.0000005, 0.0).of(usage) == 2e-12, "1.5 picodollars are rounded to the even one"
