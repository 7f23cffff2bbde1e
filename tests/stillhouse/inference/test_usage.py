from typing import Any

import pytest

from stillhouse.inference.usage import Parts, parts_of, read_cost, read_tier, read_usage


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (
            {
                "prompt_tokens": 11,
                "completion_tokens": 3,
                "completion_tokens_details": {"reasoning_tokens": 2},
                "prompt_tokens_details": {"cached_tokens": 8},
            },
            {"prompt_tokens": 11, "completion_tokens": 3, "reasoning_tokens": 2, "cached_tokens": 8},
        ),
        (
            {"prompt_tokens": 9, "completion_tokens": 1, "prompt_cache_hit_tokens": 4, "prompt_cache_miss_tokens": 5},
            {"prompt_tokens": 9, "completion_tokens": 1, "cached_tokens": 4},
        ),
        (
            {"input_tokens": 5, "output_tokens": 2, "cache_read_input_tokens": 30, "cache_creation_input_tokens": 10},
            {"prompt_tokens": 45, "completion_tokens": 2, "cached_tokens": 30, "cache_write_tokens": 10},
        ),
        (
            {"prompt_tokens": 9, "cached_tokens": 4, "reasoning_tokens": 7},
            {"prompt_tokens": 9, "reasoning_tokens": 7, "cached_tokens": 4},
        ),
        (
            {"prompt_tokens": 9, "prompt_tokens_details": None, "completion_tokens_details": "none"},
            {"prompt_tokens": 9},
        ),
        ({"prompt_tokens": None, "completion_tokens": "3"}, {}),
        ({"prompt_tokens": True, "completion_tokens": -1}, {}),
        (None, {}),
        ([1], {}),
    ],
)
def test_usage_is_read_in_every_provider_s_spelling(written: Any, expected: dict[str, int]) -> None:
    assert read_usage(written) == expected


def test_a_cost_is_what_the_endpoint_says_or_unknown() -> None:
    assert read_cost({"cost": 0.25}) == 0.25
    assert read_cost({"cost": 0}) == 0.0
    assert [read_cost(usage) for usage in ({}, {"cost": None}, {"cost": "1"}, {"cost": True}, None)] == [None] * 5


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (
            {
                "prompt_tokens": 2006,
                "completion_tokens": 300,
                "total_tokens": 2306,
                "prompt_tokens_details": {"cached_tokens": 1000, "cache_write_tokens": 900, "audio_tokens": 0},
                "completion_tokens_details": {"reasoning_tokens": 0},
            },
            (106, 1000, 900, 0, 300, 0),
        ),
        (
            {
                "input_tokens": 100,
                "input_tokens_details": {
                    "cached_tokens": 60,
                    "cache_write_tokens": 30,
                    "cache_write_tokens_details": {"ttl_30m_tokens": 10, "ttl_12h_tokens": 20},
                },
                "output_tokens": 9,
                "output_tokens_details": {"reasoning_tokens": 4},
                "total_tokens": 109,
            },
            (10, 60, 10, 20, 5, 4),
        ),
        (
            {
                "input_tokens": 5,
                "output_tokens": 2,
                "cache_read_input_tokens": 30,
                "cache_creation_input_tokens": 10,
                "cache_creation": {"ephemeral_5m_input_tokens": 3, "ephemeral_1h_input_tokens": 7},
            },
            (5, 30, 3, 7, 2, 0),
        ),
        # LiteLLM's proxy repeats, in what it calls OpenAI's form, what the prompt already has.
        (
            {
                "prompt_tokens": 98805,
                "completion_tokens": 5120,
                "total_tokens": 103925,
                "prompt_tokens_details": {"cached_tokens": 66360, "cache_creation_tokens": 32435},
                "cache_read_input_tokens": 66360,
                "cache_creation_input_tokens": 32435,
                "completion_tokens_details": {"reasoning_tokens": 1710},
            },
            (10, 66360, 32435, 0, 3410, 1710),
        ),
        # xAI and Gemini leave the reasoning out of the completion; the total has it.
        (
            {
                "prompt_tokens": 32,
                "completion_tokens": 9,
                "total_tokens": 135,
                "completion_tokens_details": {"reasoning_tokens": 94},
            },
            (32, 0, 0, 0, 9, 94),
        ),
        ({"prompt_tokens": 10, "completion_tokens": 20, "total_tokens": 130}, (10, 0, 0, 0, 20, 100)),
        # More of the parts than of the whole: no part is below 0.
        (
            {
                "prompt_tokens": 10,
                "completion_tokens": 1,
                "prompt_tokens_details": {"cached_tokens": 8, "cache_write_tokens": 7},
            },
            (0, 3, 7, 0, 1, 0),
        ),
    ],
)
def test_each_token_is_counted_once(written: Any, expected: tuple[int, ...]) -> None:
    assert parts_of(read_usage(written)) == Parts(*expected)


@pytest.mark.parametrize(
    "more",
    [
        {"prompt_tokens_details": {"audio_tokens": 3}},
        {"completion_tokens_details": {"audio_tokens": 3}},
        {"completion_tokens_details": {"image_tokens": 3}},
        {"server_tool_use": {"web_search_requests": 1}},
    ],
)
def test_a_usage_with_audio_images_or_searches_has_no_parts_to_charge(more: dict[str, Any]) -> None:
    assert parts_of(read_usage({"prompt_tokens": 9, "completion_tokens": 9, **more})) is None


def test_an_own_key_s_bill_comes_on_top_of_the_router_s_fee() -> None:
    details = {"cost_details": {"upstream_inference_cost": 0.0360795}}
    assert read_cost({"cost": 0, "is_byok": True, **details}) == 0.0360795
    assert read_cost({"cost": 0.04, "is_byok": False, **details}) == 0.04


def test_a_cost_is_read_where_perplexity_and_xai_write_it() -> None:
    assert read_cost({"cost": {"request_cost": 0.005, "total_cost": 0.0061}}) == 0.0061
    assert read_cost({"cost_in_usd_ticks": 37756000}) == 0.0037756


@pytest.mark.parametrize(
    ("body", "tier"),
    [
        ({"service_tier": "flex"}, "flex"),
        ({"service_tier": "default", "usage": {}}, "default"),
        ({"service_tier": "on_demand"}, "default"),
        ({"service_tier": None, "usage": {"service_tier": "standard"}}, "default"),
        ({"usage": {"service_tier": "batch"}}, "batch"),
        ({"usage": {"service_tier": "standard", "speed": "fast"}}, "fast"),
        ({"usage": {"service_tier": "standard", "inference_geo": "us"}}, "default in us"),
        ({"usage": {"service_tier": "standard", "inference_geo": "not_available"}}, "default"),
        ({"service_tier": 3, "usage": [1]}, None),
        ({}, None),
        (None, None),
    ],
)
def test_the_tier_is_the_answer_s(body: Any, tier: str | None) -> None:
    assert read_tier(body) == tier
