from typing import Any

import pytest
from pydantic import ValidationError

from stillhouse.config import OnPolicyConfig

NEAR = [{"name": name, "model": "embedded:teacher", "routes": [name]} for name in ("maths", "code")]
FAR = [{**one, "kind": "vllm", "base_url": "http://127.0.0.1:8000/v1", "top_k": 20} for one in NEAR]


def config(**settings: Any) -> OnPolicyConfig:
    return OnPolicyConfig.model_validate(settings)


@pytest.mark.parametrize(
    "settings",
    [
        {"balance": "gaps", "teachers": NEAR},
        {"balance": "teachers", "teachers": NEAR, "divergence": [{}]},
        {"balance": "spreads", "teachers": FAR, "divergence": [{}]},
        {
            "balance": "gaps",
            "teachers": [{**one, "top_k": 20} for one in NEAR],
            "divergence": [{}],
            "source": "rollouts",
        },
    ],
    ids=["sampled", "shares", "served", "recorded"],
)
def test_a_balance_is_taken_where_what_it_reads_is_known_when_a_batch_is_sampled(settings: dict[str, Any]) -> None:
    assert config(**settings).balance == settings["balance"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"balance": "teachers"}, "of which there are 0; expected two or more"),
        ({"balance": "teachers", "teachers": NEAR[:1]}, "of which there are 1; expected two or more"),
        ({"balance": "gaps", "teachers": NEAR, "divergence": [{}]}, "teacher 'maths' in this process"),
        ({"balance": "spreads", "teachers": [FAR[0], NEAR[1]], "divergence": [{}]}, "teacher 'code' in this process"),
    ],
)
def test_a_balance_of_nothing_or_of_what_is_not_yet_known_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=f"balance '{settings['balance']}' .*{message}"):
        config(**settings)
