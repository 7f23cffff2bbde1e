from typing import Any

import pytest
from pydantic import ValidationError

from stillhouse.config import OnPolicyConfig


def config(**fields: Any) -> OnPolicyConfig:
    return OnPolicyConfig.model_validate(fields)


def test_a_config_without_a_prefix_has_the_dump_that_it_always_had() -> None:
    assert "prefix" not in config().model_dump(mode="json")
    assert config(prefix={"tokens": 8}).model_dump(mode="json")["prefix"]["tokens"] == 8


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"prefix": {"final_tokens": 8}}, "final_tokens = 8 with prefix.tokens = None: expected a number to grow from"),
        ({"prefix": {"tokens": 9, "final_tokens": 8}}, "final_tokens = 8 with prefix.tokens = 9"),
        ({"prefix": {"tokens": 8}, "reward_coef": 1.0, "group_size": 4}, "ends trajectories before their answers"),
        ({"prefix": {"tokens": 8}, "skip_first_n_tokens": 8}, "leaves nothing of prefix.tokens = 8"),
        ({"prefix": {"tokens": 8, "final_tokens": 9}, "source": "rollouts"}, "leave final_tokens out"),
    ],
)
def test_a_prefix_that_teaches_nothing_or_cannot_be_is_refused(fields: dict[str, Any], expected: str) -> None:
    with pytest.raises(ValidationError, match=expected):
        config(**fields)
