import pytest
from hypothesis import given
from hypothesis import strategies as st

from stillhouse.inference.endpoint import Price
from stillhouse.types import TokenUsage


def test_cached_prompt_tokens_reasoning_and_the_request_have_prices_of_their_own() -> None:
    price = Price(4.0, 10.0, cached_prompt=1.0, reasoning=20.0, request=0.5)
    usage: TokenUsage = {"prompt_tokens": 100, "cached_tokens": 60, "completion_tokens": 50, "reasoning_tokens": 20}
    assert price.of(usage) == pytest.approx((40 * 4 + 60 * 1 + 30 * 10 + 20 * 20) / 1e6 + 0.5)


def test_without_prices_of_their_own_they_cost_as_what_they_are_part_of() -> None:
    usage: TokenUsage = {"prompt_tokens": 100, "cached_tokens": 60, "completion_tokens": 50, "reasoning_tokens": 20}
    assert Price(4.0, 10.0).of(usage) == pytest.approx(900e-6)


def test_a_completion_whose_tokens_are_not_told_has_no_known_cost() -> None:
    assert Price(4.0, 10.0).of({"prompt_tokens": 5}) is None


amounts = st.floats(0, 100)


@given(
    amounts, amounts, st.none() | amounts, st.none() | amounts, st.integers(0, 9999), st.integers(0, 9999), st.data()
)
def test_no_completion_costs_more_than_the_worst_of_its_size(
    prompt: float,
    completion: float,
    cached: float | None,
    reasoning: float | None,
    prompt_tokens: int,
    completion_tokens: int,
    data: st.DataObject,
) -> None:
    price = Price(prompt, completion, cached_prompt=cached, reasoning=reasoning, request=0.1)
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
