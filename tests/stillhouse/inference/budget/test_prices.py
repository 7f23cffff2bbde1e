import asyncio
import json
import logging
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from stillhouse.config import BudgetConfig, ModelRole, TeacherConfig
from stillhouse.errors import ConfigError
from stillhouse.inference.budget import price_of, require_prices
from stillhouse.inference.budget.prices import read_listed
from stillhouse.inference.endpoint import Endpoint
from stillhouse.inference.price import Price

LISTED = {
    "data": [
        {"id": "other", "pricing": {"prompt": "1", "completion": "1"}},
        {
            "id": "m",
            "pricing": {
                "prompt": "0.0000025",
                "completion": "0.00001",
                "request": "0.002",
                "image": "0",
                "input_cache_read": "0.00000025",
                "input_cache_write": "0.000003125",
                "internal_reasoning": "0.00002",
            },
        },
    ]
}


STATED = {"prompt": 1.0, "completion": 2.0, "cached_prompt": 0.5}


def find_price(url: str, **teacher: Any) -> Price | None:
    config = TeacherConfig(model="m", base_url=url, **teacher)
    return asyncio.run(price_of(Endpoint(url, "m", "m", "key"), config))


def list_models(site: Any, body: Any, status: int = 200) -> str:
    """Return the URL of an endpoint whose list of models is this."""
    site.pages["/v1/models"] = (status, {}, body if isinstance(body, bytes) else json.dumps(body))
    return str(site.url("/v1"))


def test_the_config_goes_before_the_endpoint_and_batches_cost_half(site: Any) -> None:
    url = list_models(site, LISTED)
    assert find_price(url, usd_per_million_tokens=STATED) == Price(1.0, 2.0, cached_prompt=0.5)
    assert find_price(url, usd_per_million_tokens=STATED, batch=True) == Price(0.5, 1.0, cached_prompt=0.25)
    listed = find_price(url)
    assert listed is not None
    assert listed.prompt == pytest.approx(2.5)
    assert site.authorizations == ["Bearer key"]


def test_a_file_of_prices_goes_before_the_list_of_the_endpoint(
    site: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    url = list_models(site, LISTED)
    prices = tmp_path / "prices.yaml"
    prices.write_text("m: {prompt: 7, completion: 8}")
    with caplog.at_level(logging.INFO):
        found = find_price(url, prices_file=str(prices), service_tier="default")
    assert found == Price(7, 8, asked="default")
    assert "teacher m: $7 prompt, $8 completion per million tokens (prices.yaml of 20" in caplog.text
    assert find_price(url, prices_file=str(prices), batch=True) == Price(3.5, 4)
    prices.write_text("other: {prompt: 7, completion: 8}")
    listed = find_price(url, prices_file=str(prices))
    assert listed is not None
    assert (listed.prompt, listed.source) == (2.5, f"{url}/models as of now")
    assert "has no price of m" in caplog.text


def test_the_prices_of_a_seller_that_lists_none_are_known() -> None:
    # No name under `.invalid` is ever resolved.
    endpoint = Endpoint("https://api.openai.com.invalid/v1", "gpt-5-mini", "m")
    price = asyncio.run(price_of(endpoint, TeacherConfig(model="m", base_url=endpoint.base_url, service_tier="flex")))
    assert price is not None
    assert (price.asked, price.source.partition(" ")[0]) == ("flex", "genai-prices")


def test_a_price_without_completions_or_with_an_unknown_kind_is_refused() -> None:
    for prices in ({"prompt": 1.0}, {**STATED, "cache": 2}, {**STATED, "prompt": -1.0}, {**STATED, "prompt": "cheap"}):
        with pytest.raises(ValidationError, match="usd_per_million_tokens"):
            TeacherConfig.model_validate({"usd_per_million_tokens": prices})


def test_a_list_is_asked_for_once(site: Any) -> None:
    url = list_models(site, LISTED)
    assert find_price(url) == find_price(url)
    assert len(site.seen) == 1


@pytest.mark.parametrize(
    ("status", "body"), [(500, {}), (401, {"error": "key"}), (200, b"<html>"), (200, []), (200, {"data": None})]
)
def test_an_endpoint_without_a_list_leaves_the_price_unknown(site: Any, status: int, body: Any) -> None:
    assert find_price(list_models(site, body, status)) is None


def test_without_an_answer_the_price_is_unknown_and_asked_for_again(site: Any) -> None:
    assert find_price("http://127.0.0.1:9/v1") is None
    assert find_price(list_models(site, {}, 503)) is None
    assert find_price(list_models(site, LISTED)) is not None


def test_openrouters_form_is_read_with_cache_reasoning_and_request() -> None:
    price = read_listed(LISTED, "m")
    assert price is not None
    assert (price.prompt, price.completion, price.request) == (2.5, 10.0, 0.002)
    assert (price.cached_prompt, price.cache_write, price.reasoning) == (0.25, 3.125, 20.0)


@pytest.mark.parametrize(
    "pricing",
    [
        {"prompt": "-1", "completion": "-1"},
        {"prompt": "0.1"},
        {"prompt": "free", "completion": "free"},
        {"prompt": None, "completion": "nan"},
    ],
)
def test_a_listed_price_that_is_none_is_unknown_and_a_free_model_costs_nothing(pricing: dict[str, Any]) -> None:
    assert read_listed({"data": [{"id": "m", "pricing": pricing}]}, "m") is None
    free = {"prompt": "0", "completion": "0"}
    assert read_listed({"data": [{"id": "m", "pricing": free}]}, "m") == Price(0.0, 0.0)


def test_a_cap_in_money_needs_a_price_which_is_asked_for_in_the_models_own_section() -> None:
    for role, section in ((ModelRole.TEACHER, "teacher"), (ModelRole.JUDGE, "dataset.judge.model")):
        with pytest.raises(ConfigError, match=re.escape(f"{section}.usd_per_million")):
            require_prices(Endpoint("u", "m", "m", role=role), BudgetConfig(max_usd=1.0))
    require_prices(Endpoint("u", "m", "m", price=Price(0.0, 0.0)), BudgetConfig(max_usd=1.0))
    require_prices(Endpoint("u", "m", "m"), BudgetConfig(max_tokens=5))


def test_a_charge_that_cannot_be_counted_ends_a_capped_run_and_warns_of_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    price = Price(1.0, 2.0, tiers={}, gaps=("citation_cost_per_token",), source="prices.json")
    endpoint = Endpoint("u", "sonar", "m", price=price)
    with pytest.raises(ConfigError) as caught:
        require_prices(endpoint, BudgetConfig(max_usd=1.0))
    for part in ("of sonar citation_cost_per_token", "prices.json", "teacher.usd_per_million_tokens"):
        assert part in str(caught.value)
    require_prices(endpoint, BudgetConfig(max_tokens=5))
    assert "citation_cost_per_token" in caplog.text
    with pytest.raises(ConfigError, match="the service tier flex"):
        require_prices(replace(endpoint, price=replace(price, gaps=(), asked="flex")), BudgetConfig(max_usd=1.0))


@pytest.mark.parametrize(
    "teacher",
    [
        {"prices_file": "p.yaml"},
        {"service_tier": "flex"},
        {"base_url": "http://x/v1", "prices_file": "p.yaml", "usd_per_million_tokens": STATED},
        {"base_url": "http://x/v1", "batch": True, "service_tier": "flex"},
    ],
)
def test_settings_of_prices_that_would_be_ignored_are_refused(teacher: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        TeacherConfig.model_validate(teacher)
