from datetime import UTC, date, datetime

import pytest

from stillhouse.inference.budget.known_prices import known_price

OPENAI = "https://api.openai.com/v1"


def test_a_model_of_a_usual_seller_has_a_price_with_its_tiers_and_rows() -> None:
    price = known_price(OPENAI, "gpt-6-astra")
    assert price is not None
    assert (price.prompt, price.completion, price.cached_prompt, price.cache_write) == (10.0, 50.0, 1.0, 12.5)
    assert price.above[272000].prompt == 20.0
    tiers = price.tiers or {}
    assert {"flex", "priority", "batch"} <= tiers.keys()
    assert tiers["flex"].above[272000].completion == 37.5
    assert price.unknown == ()


def test_the_source_says_which_data_and_of_when() -> None:
    price = known_price(OPENAI, "gpt-5-mini")
    assert price is not None
    name, _, newest = price.source.partition(" of ")
    assert name.startswith("genai-prices ")
    assert date(2026, 1, 1) < date.fromisoformat(newest[:10]) <= datetime.now(UTC).date()


@pytest.mark.parametrize(
    ("base_url", "model"),
    [
        (OPENAI, "no-such-model"),
        ("http://127.0.0.1:8000/v1", "gpt-5-mini"),
        ("https://llm.example.com/v1", "gpt-5-mini"),
    ],
)
def test_an_unknown_model_or_seller_has_none(base_url: str, model: str) -> None:
    assert known_price(base_url, model) is None


def test_a_price_that_changes_with_the_hour_is_the_highest() -> None:
    price = known_price("https://api.deepseek.com", "deepseek-chat")
    assert price is not None
    assert (price.prompt, price.completion) == (0.27, 1.1)


def test_a_reseller_s_tiers_are_not_the_seller_s() -> None:
    price = known_price("https://x.openai.azure.com/openai/v1", "gpt-6-astra")
    assert price is None or price.batch() is None
