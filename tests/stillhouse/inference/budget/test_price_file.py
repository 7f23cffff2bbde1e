import json
import re
from pathlib import Path
from typing import Any

import pytest

from stillhouse.errors import ConfigError
from stillhouse.inference.budget.price_file import file_price, is_gap, read_litellm
from stillhouse.inference.price import Price

KEYS = [
    key
    for line in Path(__file__).with_name("litellm_price_keys.txt").read_text().splitlines()
    if not line.startswith("#")
    for key in line.split()
]
BASE = {"input_cost_per_token": 1e-6, "output_cost_per_token": 4e-6, "litellm_provider": "openai", "mode": "chat"}
OPENAI = "https://api.openai.com/v1"
COUNTED = re.compile(r"(input|output|cache_\w+_input)_(cost_per_token|cost_per_reasoning_token|token_cost)(?!_per).*")


def write(folder: Path, table: Any, name: str = "prices.json") -> Path:
    path = folder / name
    path.write_text(table if isinstance(table, str) else json.dumps(table))
    return path


def amounts(price: Price) -> set[float]:
    """Return every amount in a price, its rows and tiers."""
    rows = [price, *price.above.values(), *(price.tiers or {}).values()]
    rows += [row for tier in (price.tiers or {}).values() for row in tier.above.values()]
    names = ("prompt", "completion", "cached_prompt", "reasoning", "cache_write", "cache_write_long", "request")
    return {getattr(row, name) for row in rows for name in names}


@pytest.mark.parametrize("key", KEYS)
def test_each_price_key_of_litellm_is_counted_or_known_not_to_apply_or_named_as_a_gap(key: str) -> None:
    odd = 3.21e-7
    price = read_litellm({**BASE, key: [] if key == "tiered_pricing" else odd}, "m", "")
    assert price is not None
    if COUNTED.fullmatch(key) and "audio" not in key and "image" not in key and not key.startswith("explicit"):
        assert 0.321 in amounts(price)
    elif key == "input_cost_per_request":
        assert odd in amounts(price)
    elif is_gap(key):
        assert price.unknown == (key,)
    else:
        assert price.gaps == ()


def test_the_gaps_are_charges_that_no_answer_counts() -> None:
    assert {key for key in KEYS if is_gap(key)} == {
        "citation_cost_per_token",
        "cost_per_second",
        "input_cost_per_query",
        "input_cost_per_second",
        "output_cost_per_second",
        *(f"output_cost_per_second_{size}" for size in ("1080p", "2k", "480p", "4k", "720p", "768p")),
    }


@pytest.mark.parametrize(
    "key",
    [
        "input_cost_per_token_above_9m_tokens",
        "input_cost_per_token_turbo",
        "cache_creation_input_token_cost_above_24hr",
        "output_token_surcharge",
        "weekend_pricing",
    ],
)
def test_a_price_key_that_is_not_known_is_a_gap(key: str) -> None:
    price = read_litellm({**BASE, key: 1e-6, "supports_vision": True, "max_tokens": 9}, "m", "")
    assert price is not None
    assert price.unknown == (key,)


def test_a_search_is_a_gap_of_models_that_always_search() -> None:
    searched = {**BASE, "search_context_cost_per_query": {"search_context_size_low": 0.01}}
    for name, gaps in (("gpt-5", ()), ("gpt-5-search-api", ("search_context_cost_per_query",))):
        price = read_litellm(searched, name, "")
        assert price is not None
        assert price.gaps == gaps


def test_rows_by_length_tier_and_lifetime_are_read() -> None:
    price = read_litellm(
        {
            **BASE,
            "cache_creation_input_token_cost": 1.25e-6,
            "cache_creation_input_token_cost_above_1hr": 2e-6,
            "cache_creation_input_token_cost_above_1hr_above_100k_tokens": 1e-5,
            "cache_creation_input_token_cost_above_100k_tokens": 6.25e-6,
            "input_cost_per_token_above_100k_tokens": 5e-6,
            "output_cost_per_token_above_100k_tokens": 2e-5,
            "input_cost_per_token_flex": 5e-7,
            "output_cost_per_token_flex": 2e-6,
            "input_cost_per_request": 0.01,
        },
        "m",
        "",
    )
    assert price is not None
    long = Price(5.0, 20.0, cache_write=6.25, cache_write_long=10.0, request=0.01)
    assert (price.prompt, price.cache_write_long, price.request, price.above) == (1.0, 2.0, 0.01, {100000: long})
    # What the tier does not say costs no more than the standard, since the tier is the cheaper one.
    flex = (price.tiers or {})["flex"]
    assert (flex.prompt, flex.completion, flex.cache_write_long, flex.gaps) == (0.5, 2.0, 2.0, ())
    assert flex.above == {100000: long}


def test_cells_that_a_dearer_row_lacks_are_gaps_and_reads_at_most_the_prompt() -> None:
    price = read_litellm(
        {
            **BASE,
            "cache_read_input_token_cost": 1e-7,
            "cache_creation_input_token_cost": 1.25e-6,
            "input_cost_per_token_priority": 2e-6,
            "output_cost_per_token_priority": 8e-6,
            "output_cost_per_token_above_200k_tokens": 6e-6,
        },
        "m",
        "",
    )
    assert price is not None
    assert set(price.gaps) == {"prompt above 200000 tokens", "cache_write above 200000 tokens"}
    priority = (price.tiers or {})["priority"]
    assert priority.cached_prompt is None
    assert "cache_write in the tier priority" in priority.gaps


def test_reasoning_that_costs_as_the_completion_does_so_in_each_tier() -> None:
    row = {**BASE, "output_cost_per_reasoning_token": 4e-6, "input_cost_per_token_priority": 2e-6}
    price = read_litellm({**row, "output_cost_per_token_priority": 8e-6}, "m", "")
    assert price is not None
    assert price.of({"prompt_tokens": 0, "completion_tokens": 1, "reasoning_tokens": 1}, "priority") == 8e-6
    assert price.unknown == ()


def test_ranges_are_rows_by_the_length_of_the_prompt() -> None:
    ranges = [
        {"range": [0, 256000.0], "input_cost_per_token": 5e-8, "output_cost_per_token": 4e-7},
        {"range": [256000.0, 1e6], "input_cost_per_token": 2.5e-7, "output_cost_per_token": 2e-6, "x_cost": 1},
    ]
    price = read_litellm({"tiered_pricing": ranges, "litellm_provider": "dashscope"}, "m", "")
    assert price is not None
    assert (price.prompt, price.above) == (0.05, {256000: Price(0.25, 2.0)})
    assert price.unknown == ("x_cost",)


@pytest.mark.parametrize(
    ("host", "usd"), [("api.openai.com", 1.0), ("eu.api.openai.com", 1.1), ("us.api.openai.com", 1.2)]
)
def test_a_region_s_surcharge_is_charged_at_its_host(host: str, usd: float) -> None:
    uplifts = {"regional_processing_uplift_multiplier_eu": 1.1, "regional_processing_uplift_multiplier_us": 1.2}
    price = read_litellm(
        {**BASE, **uplifts, "output_cost_per_token_flex": 1e-6, "input_cost_per_token_flex": 1e-6}, "m", host
    )
    assert price is not None
    assert (price.prompt, (price.tiers or {})["flex"].prompt) == (usd, usd)


@pytest.mark.parametrize(
    "row",
    [{"input_cost_per_token": 0, "output_cost_per_token": 0}, {"input_cost_per_token": 1e-6}, {"cost_per_second": 1}],
)
def test_a_row_of_zeros_or_without_tokens_has_no_price(row: dict[str, Any]) -> None:
    assert read_litellm({"litellm_provider": "x", **row}, "m", "") is None


def test_a_model_that_is_called_free_costs_nothing() -> None:
    zeros = {"input_cost_per_token": 0, "output_cost_per_token": 0}
    assert read_litellm(zeros, "openrouter/m:free", "") == Price(0.0, 0.0, tiers={})


@pytest.mark.parametrize(
    ("base_url", "model", "usd"),
    [
        (OPENAI, "gpt", 1.0),
        ("https://x.openai.azure.com/openai/v1", "gpt", 2.0),
        ("https://generativelanguage.googleapis.com/v1beta/openai", "gem", 3.0),
        ("https://api.together.xyz/v1", "org/llama", 4.0),
        # Another's row of the same name, at a seller that the table knows, is not that seller's price.
        ("https://api.together.xyz/v1", "gpt", None),
        # A gateway of one's own sells what it is called.
        ("https://llm.example.com/v1", "gpt", 1.0),
        ("https://llm.example.com/v1", "other", None),
        (OPENAI, "newest", 1.0),
    ],
)
def test_a_model_is_found_at_its_seller(tmp_path: Path, base_url: str, model: str, usd: float | None) -> None:
    def row(usd: float, provider: str) -> dict[str, Any]:
        return {"input_cost_per_token": usd / 1e6, "output_cost_per_token": 1e-5, "litellm_provider": provider}

    table = {
        "sample_spec": {"litellm_provider": "one of", "input_cost_per_token": 0.0},
        "gpt": row(1.0, "openai"),
        "azure/gpt": row(2.0, "azure"),
        "gem": row(9.0, "vertex_ai-language-models"),
        "gemini/gem": row(3.0, "gemini"),
        "together_ai/org/llama": row(4.0, "together_ai"),
        "newest": {"alias_of": "gpt"},
    }
    price = file_price(write(tmp_path, table), base_url, model)
    assert (None if price is None else price.prompt) == usd
    assert price is None or "prices.json of 20" in price.source


def test_a_table_of_one_s_own_has_plain_rows_and_rows_in_litellm_s_keys(tmp_path: Path) -> None:
    text = """
m: {prompt: 0.25, completion: 2, cached_prompt: 0.025, cache_write_long: 0.5, request: 0.01}
n: {input_cost_per_token: 1.0e-6, output_cost_per_token: 2.0e-6, input_cost_per_token_flex: 5.0e-7}
"""
    path = write(tmp_path, text, "own.yaml")
    own = file_price(path, "https://x.example/v1", "m")
    assert own == Price(0.25, 2, cached_prompt=0.025, cache_write_long=0.5, request=0.01)
    assert file_price(path, "https://x.example/v1", "n") == Price(1.0, 2.0, tiers={"flex": Price(0.5, 2.0)})


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ({"prompt": 1}, "expected prompt and completion"),
        ({"prompt": 1, "completion": 1, "cache": 1}, "m.cache = "),
        ({"prompt": -1, "completion": 1}, "m.prompt = -1: expected at least 0"),
        ({"prompt": "1", "completion": 1}, "m.prompt = '1': expected a number"),
    ],
)
def test_a_wrong_row_is_named(tmp_path: Path, row: Any, told: str) -> None:
    path = write(tmp_path, {"m": row})
    with pytest.raises(ConfigError) as caught:
        file_price(path, "https://x.example/v1", "m")
    assert str(path) in str(caught.value)
    assert told in str(caught.value)


@pytest.mark.parametrize("text", ["[1, 2]", "{", "3", '{"m": 3}'])
def test_a_file_that_is_no_table_is_named(tmp_path: Path, text: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(ConfigError, match=r"prices\.json"):
        file_price(path, OPENAI, "m")
    with pytest.raises(ConfigError, match="absent"):
        file_price(tmp_path / "absent.json", OPENAI, "m")
