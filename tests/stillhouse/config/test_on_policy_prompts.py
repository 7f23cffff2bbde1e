from typing import Any

import pytest
from pydantic import ValidationError

from stillhouse.config import OnPolicyConfig


def config(*mixture: dict[str, Any], **settings: Any) -> OnPolicyConfig:
    return OnPolicyConfig.model_validate({"mixture": mixture, **settings})


@pytest.mark.parametrize(
    ("mixture", "expected"),
    [
        ([{"source": "a", "num_prompts": 8}, {"source": "b", "num_prompts": 24}], {"a": 8, "b": 24}),
        ([{"source": "a", "weight": 1}, {"source": "b", "weight": 3}], {"a": 8, "b": 24}),
        ([{"source": "a", "weight": 1}, {"source": "b", "weight": 2}], {"a": 11, "b": 21}),
        ([{"source": name, "weight": 1} for name in "abc"], {"a": 11, "b": 11, "c": 10}),
        ([{"source": "a", "weight": 0.5}, {"source": "b", "num_prompts": 2}], {"a": 30, "b": 2}),
        ([], {}),
    ],
)
def test_numbers_are_kept_and_weights_share_the_rest_of_a_batch(
    mixture: list[dict[str, Any]], expected: dict[str, int]
) -> None:
    assert config(*mixture, prompts_per_step=32).num_prompts_by_source == expected


@pytest.mark.parametrize(
    ("mixture", "expected"),
    [
        ([{"source": "a"}], "source 'a' has num_prompts None and weight None"),
        ([{"source": "a", "weight": 1, "num_prompts": 1}], "expected one of them"),
        ([{"source": "a", "num_prompts": 5}], "takes 5 prompts of each batch, but prompts_per_step is 4"),
        ([{"source": "a", "num_prompts": 3}], "takes 3 prompts of each batch, but prompts_per_step is 4"),
        ([{"source": "a", "weight": 1}, {"source": "a", "weight": 1}], "names a, a; expected each source once"),
        ([{"source": "a", "weight": 1}, {"source": "b", "weight": 99}], "leaves no prompt of a batch of 4 to a;"),
        ([{"source": "a", "weight": 1}, {"source": "b", "num_prompts": 4}], "leaves no prompt of a batch of 4 to a;"),
    ],
)
def test_a_mixture_that_does_not_add_up_is_refused(mixture: list[dict[str, Any]], expected: str) -> None:
    with pytest.raises(ValidationError, match=expected):
        config(*mixture, prompts_per_step=4)


def test_skipped_tokens_leave_some_to_train_on() -> None:
    with pytest.raises(ValidationError, match="skip_first_n_tokens = 8 leaves nothing of completions of max_tokens"):
        config(skip_first_n_tokens=8, max_tokens=8)
