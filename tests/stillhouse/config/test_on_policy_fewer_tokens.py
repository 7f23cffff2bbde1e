from typing import Any

import pytest
from pydantic import ValidationError

from stillhouse.config import OnPolicyConfig

SERVED = {"name": "far", "kind": "vllm", "model": "m", "base_url": "http://127.0.0.1:8000/v1"}
PRUNE: dict[str, Any] = {"prune": {"min_overlap": 0.7}}
WINDOW: dict[str, Any] = {"prune": {"min_overlap": 0.7, "window": 64}}
WEIGHTS: dict[str, Any] = {"token_weights": {"by": "soft_or"}}


def config(**settings: Any) -> OnPolicyConfig:
    return OnPolicyConfig.model_validate(settings)


def test_at_its_defaults_a_dump_is_what_it_was_and_no_teacher_gives_more():
    assert config().model_dump().keys().isdisjoint({"prune", "token_weights"})
    assert config().scored_top_k == config(token_weights={"by": "entropy"}).scored_top_k == 0


def test_the_teachers_tokens_asked_for_are_as_many_as_either_section_needs():
    assert config(prune={"min_overlap": 0.7, "top_k": 4}, token_weights={"by": "soft_or", "top_k": 9}).scored_top_k == 9
    assert config(**PRUNE, teachers=[{**SERVED, "top_k": 20}]).scored_top_k == 16


@pytest.mark.parametrize("divergence", [[], [{"kind": "jsd"}]])
@pytest.mark.parametrize("other", [{"prefix": {"tokens": 64}}, {"reward_coef": 1.0, "group_size": 4}])
def test_pruning_and_weights_go_with_prefixes_and_rewards(divergence: list[Any], other: dict[str, Any]):
    assert config(**PRUNE, **WEIGHTS, **other, divergence=divergence).prune.is_on


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({**PRUNE, "kl_coef": 0.0, "reward_coef": 1.0, "group_size": 4}, "prune.min_overlap compares .* kl_coef is 0"),
        ({**WEIGHTS, "kl_coef": 0.0, "reward_coef": 1.0, "group_size": 4}, "`soft_or` compares student and teacher"),
        ({**PRUNE, "teachers": [SERVED]}, "takes the 16 most probable .* gives none; set its top_k to 16 or more"),
        ({**WEIGHTS, "teachers": [{**SERVED, "top_k": 5}]}, "'far' of kind 'vllm' gives 5; set its top_k to 16"),
        ({**PRUNE, "teachers": [{**SERVED, "kind": "echo"}]}, "teacher 'far' .* does not give"),
        ({**PRUNE, "teachers": [{"name": "t", "model": "m", "alignment": "bytes"}]}, "alignment 'bytes'"),
        ({**PRUNE, "kl_discount_factor": 0.5}, "credit a token with the KL of those behind it"),
        ({**PRUNE, "kl_in_reward": True, "group_size": 4}, "credit a token with the KL of those behind it"),
        ({"prune": {"window": 64}}, "prune.min_overlap is not set"),
        ({**WINDOW, "prefix": {"tokens": 64}}, "window = 64 does not go with prefix.tokens"),
        ({**WINDOW, "reward_coef": 1.0, "group_size": 4}, "rewards judge whole answers"),
        ({**WINDOW, "max_staleness": 1}, "measured before the next is sampled"),
        ({**WINDOW, "source": "rollouts"}, "sampled before anything is measured"),
        ({**WINDOW, "skip_first_n_tokens": 64}, "leaves nothing of prune.window = 64"),
    ],
)
def test_what_does_not_go_with_the_rest_is_named_with_a_remedy(settings: dict[str, Any], message: str):
    with pytest.raises(ValidationError, match=message):
        config(**settings)
