import pytest
from hypothesis import given
from hypothesis import strategies as st

from stillhouse.inference.endpoint import Price, through_package
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


@pytest.mark.parametrize(
    "host",
    [
        *("127.0.0.1:8000", "localhost:8000", "[::1]:8000", "10.0.0.5", "192.168.1.2", "172.20.0.1", "169.254.1.1"),
        *("[fd00::1]", "100.64.0.1", "gpu-host:8000", "box.local", "llm.internal", "vllm.lan"),
    ],
)
def test_servers_of_ones_own_are_asked_directly(host: str) -> None:
    assert not through_package(f"http://{host}/v1", "auto")
    assert through_package(f"http://{host}/v1", "openai")


@pytest.mark.parametrize("host", ["api.openai.com", "openrouter.ai", "8.8.8.8", "shop.openai.azure.com"])
def test_hosted_endpoints_are_asked_through_the_package_unless_it_is_said(host: str) -> None:
    assert through_package(f"https://{host}/v1", "auto")
    assert not through_package(f"https://{host}/v1", "direct")
