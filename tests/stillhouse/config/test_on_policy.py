from typing import Any

import pytest
from pydantic import ValidationError

from stillhouse.config import OnPolicyConfig

NEAR = [{"name": name, "model": "embedded:teacher", "routes": [name]} for name in ("maths", "code")]
FAR = {"name": "far", "kind": "vllm", "model": "m", "base_url": "http://127.0.0.1:8000/v1"}


def config(**settings: Any) -> OnPolicyConfig:
    return OnPolicyConfig.model_validate(settings)


@pytest.mark.parametrize(
    ("settings", "kl_coef", "reward_coef", "num_terms"),
    [
        ({}, 1.0, 0.0, 0),
        ({"algorithm": "divergence"}, 1.0, 0.0, 1),
        ({"algorithm": "divergence", "divergence": [{}, {"kind": "forward_kl"}]}, 1.0, 0.0, 2),
        ({"algorithm": "rewards", "group_size": 4}, 0.0, 1.0, 0),
        ({"algorithm": "mixed", "group_size": 4}, 1.0, 1.0, 0),
        ({"algorithm": "mixed", "group_size": 4, "reward_coef": 0.5, "divergence": [{}]}, 1.0, 0.5, 1),
        ({"algorithm": "mixed", "group_size": 4, "kl_coef": 0.0, "teachers": [{**FAR, "kl_coef": 0.1}]}, 0.0, 1.0, 0),
    ],
)
def test_an_algorithm_brings_its_own_defaults(
    settings: Any, kl_coef: float, reward_coef: float, num_terms: int
) -> None:
    made = config(**settings)
    assert (made.kl_coef, made.reward_coef, len(made.divergence)) == (kl_coef, reward_coef, num_terms)
    assert OnPolicyConfig.model_validate_json(made.model_dump_json()) == made


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"divergence": [{}]}, "`divergence`"),
        ({"reward_coef": 1.0, "group_size": 4}, "`mixed`"),
        ({"kl_coef": 0.0, "reward_coef": 1.0, "group_size": 4}, "`rewards`"),
        ({"algorithm": "rewards", "kl_coef": 0.1, "group_size": 4}, "`mixed`"),
        ({"algorithm": "rewards", "divergence": [{}], "group_size": 4}, "`rewards`"),
        ({"algorithm": "mixed", "reward_coef": 0.0}, "`sampled_kl`"),
        ({"algorithm": "divergence", "divergence": []}, "`sampled_kl`"),
        ({"algorithm": "rewards", "reward_coef": 0.0}, "kl_coef and reward_coef"),
        ({"algorithm": "rewards"}, "adv_estimator 'grpo'"),
    ],
)
def test_settings_of_another_algorithm_are_refused_with_the_one_that_they_fit(settings: Any, expected: str) -> None:
    with pytest.raises(ValidationError, match=expected):
        config(**settings)


EXACT = {"algorithm": "divergence"}


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"balance": "teachers"}, "balance.* 0;"),
        ({"balance": "teachers", "teachers": NEAR[:1]}, "balance.* 1;"),
        ({"teacher": "m", "teachers": NEAR}, "teacher and teachers"),
        ({"teachers": [NEAR[0], NEAR[0]]}, "maths, maths"),
        ({"teachers": [{"name": "e", "kind": "ema"}]}, "ema_decay"),
        ({"teachers": [{**NEAR[0], "top_k": 5}]}, "whole vocabulary.*top_k"),
        ({"source": "rollouts", "max_staleness": 1}, "max_staleness"),
        ({"num_passes": 2, "max_staleness": 1}, "max_staleness"),
        ({"source": "rollouts", **EXACT}, "on_policy.teachers.*`top_k`"),
        (
            {"source": "rollouts", "trainer": {"ema_decay": 0.9}, "teachers": [{"name": "s", "kind": "ema"}]},
            "on_policy.source",
        ),
        ({"source": "rollouts", **EXACT, "teachers": NEAR[:1]}, "`top_k`"),
        ({**EXACT, "teachers": [FAR]}, "`top_k`"),
        ({**EXACT, "teachers": [{**FAR, "kind": "echo"}]}, "distribution"),
        ({"algorithm": "divergence", "divergence": [{"top_k": 9}], "teachers": [{**FAR, "top_k": 5}]}, " 5 "),
        ({"num_substeps": 3, "prompts_per_step": 8}, "prompts_per_step = 8"),
        ({"loss": "a.py:f", "ppo_clip": [0.1, 0.2]}, "ppo_clip"),
    ],
)
def test_settings_that_exclude_each_other_are_refused(settings: Any, expected: str) -> None:
    with pytest.raises(ValidationError, match=expected):
        config(**settings)


@pytest.mark.parametrize(
    "settings",
    [
        {"balance": "teachers", "teachers": NEAR, **EXACT},
        {**EXACT, "teachers": [{**FAR, "top_k": 20}]},
        {"source": "rollouts", **EXACT, "teachers": [{**NEAR[0], "top_k": 100}]},
    ],
)
def test_settings_that_go_together_are_taken(settings: Any) -> None:
    assert config(**settings).teachers


def test_settings_of_the_trainer_are_known_beside_those_of_the_method() -> None:
    identity = config(ppo_clip=[0.1, 0.3], trainer={"betas": [0.8, 0.99]}).identity()
    assert {"ppo_clip": [0.1, 0.3], "betas": [0.8, 0.99], "seed": 0}.items() <= identity.items()
    assert "trainer" not in identity


def test_samplers_are_one_address_or_several() -> None:
    assert config(engine_url="http://x/v1").engine_url == ("http://x/v1",)
    several = config(engine_url=["http://x/v1", "http://y/v1"])
    assert several.identity()["engine_url"] == ["http://x/v1", "http://y/v1"]
    for refused in ([], ["http://x/v1", "http://x/v1"], ["http://x/v1", "x:8000"]):
        with pytest.raises(ValidationError, match=r"engine_url"):
            config(engine_url=refused)
