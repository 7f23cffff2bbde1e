from typing import Any

import pytest

from stillhouse.inference.usage import read_cost, read_usage


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
            {"prompt_tokens": 45, "completion_tokens": 2, "cached_tokens": 30},
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
