from typing import Any

import pytest
from pydantic import ValidationError

from stillhouse.config import OnPolicyConfig
from stillhouse.config.mixture import prompts_by_source


@pytest.mark.parametrize(
    ("mixture", "expected"),
    [
        ({"a": 8, "b": 24}, {"a": 8, "b": 24}),
        ({"a": 0.25, "b": 0.75}, {"a": 8, "b": 24}),
        ({"a": 0.1, "b": 0.2}, {"a": 11, "b": 21}),
        (dict.fromkeys("abc", 0.5), {"a": 11, "b": 11, "c": 10}),
        ({"a": 0.5, "b": 2}, {"a": 30, "b": 2}),
        ({}, {}),
    ],
)
def test_numbers_are_kept_and_shares_divide_the_rest_of_a_batch(mixture: Any, expected: dict[str, int]) -> None:
    config = OnPolicyConfig(mixture=mixture, prompts_per_step=32)
    assert prompts_by_source(config.mixture, 32) == expected
    assert OnPolicyConfig.model_validate_json(config.model_dump_json()) == config


@pytest.mark.parametrize(
    ("mixture", "expected"),
    [
        ({"a": 1.0}, "less than 1"),
        ({"a": 0}, "greater than"),
        ({"a": 5}, "5 .*prompts_per_step is 4"),
        ({"a": 3}, "3 .*prompts_per_step is 4"),
        ({"a": 0.01, "b": 0.99}, "4 to a;"),
        ({"a": 0.5, "b": 4}, "4 to a;"),
    ],
)
def test_a_mixture_that_does_not_add_up_is_refused(mixture: Any, expected: str) -> None:
    with pytest.raises(ValidationError, match=expected):
        OnPolicyConfig(mixture=mixture, prompts_per_step=4)
