from collections.abc import Callable
from typing import Any

import pytest

from stillhouse.config import DistillConfig
from stillhouse.errors import ConfigError
from stillhouse.types import JsonObject

Convert = Callable[..., tuple[DistillConfig, dict[str, JsonObject]]]


@pytest.fixture
def of_rewards(roll_body: JsonObject, roll: Convert) -> Convert:
    """`roll` of a pipeline that learns from rewards, where the student has another name."""

    def run(**changes: Any) -> tuple[DistillConfig, dict[str, JsonObject]]:
        workers = {"actor_train": roll_body["student_train"], "actor_infer": roll_body["student_infer"]}
        return roll("student_train", "student_infer", **workers, **changes)

    return run


def test_rewards_are_mixed_in_where_roll_does(of_rewards: Convert) -> None:
    group = {"adv_estimator": "reinforce", "norm_mean_type": "group", "norm_std_type": None}
    config, _ = of_rewards(**group, use_opd=True)
    assert (config.on_policy.algorithm, config.on_policy.reward_coef, config.on_policy.kl_coef) == ("mixed", 1.0, 0.5)
    assert config.on_policy.adv_estimator == "rloo"


def test_a_pipeline_of_rewards_has_no_teacher(of_rewards: Convert) -> None:
    changes = {"adv_estimator": "grpo", "use_kl_loss": True, "add_token_level_kl": False}
    config, unmapped = of_rewards(**changes)
    assert config.on_policy.enabled
    assert (config.on_policy.algorithm, config.on_policy.reward_coef) == ("rewards", 1.0)
    assert "without either, rewards alone" in unmapped["teacher"]["reason"]
    assert "kind `base`" in unmapped["use_kl_loss"]["reason"]
    assert "add_token_level_kl" not in unmapped


def test_both_ways_of_distilling_at_once_are_refused(roll: Convert) -> None:
    with pytest.raises(ConfigError, match="is_pure_opd and use_opd"):
        roll(is_pure_opd=True, use_opd=True)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"pg_variant": "vanilla"}, {"loss_fn": "reinforce"}),
        ({"pg_clip": 0.3, "dual_clip_loss": False}, {"ppo_clip": (0.3, 0.3), "algorithm": "sampled_kl"}),
        ({"use_pg_clip_range": True, "pg_clip_high": 0.28}, {"ppo_clip": (0.2, 0.28)}),
        ({"ppo_epochs": 2, "advantage_clip": 5.0}, {"num_passes": 2, "num_steps": 2048, "adv_clip": 5.0}),
        ({"loss_agg_mode": "token-mean"}, {"aggregation": "token_mean"}),
        ({"loss_agg_mode": "seq-mean-token-sum-norm"}, {"aggregation": "constant"}),
        ({"pure_opd_pipeline_type": "agentic"}, {"loss_fn": "reinforce", "max_turns": 10}),
        (
            {"train_infer_correction": {"is_weight": {"enabled": True, "upper_bound": 1.5}}},
            {"correction": "truncate", "correction_bounds": (0.5, 1.5)},
        ),
        (
            {"train_infer_correction": {"filters": [{"enabled": True, "ratio_low": 0.6}]}},
            {"correction": "mask", "correction_bounds": (0.6, 1.2)},
        ),
        ({"train_infer_correction": {"is_weight": {"enabled": False}}}, {"correction": "none"}),
    ],
)
def test_settings_of_rolls_loss_have_their_equals(changes: JsonObject, expected: JsonObject, roll: Convert) -> None:
    config, unmapped = roll(**changes)
    assert {name: getattr(config.on_policy, name) for name in expected} == expected
    assert not unmapped.keys() & (changes.keys() - {"pure_opd_pipeline_type"})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("pg_variant", "topr"),
        ("pg_variant", "cispo"),
        ("dual_clip_loss", True),
        ("pg_clip", "wide"),
        ("tis_upper_bound", 2.0),
        ("loss_agg_mode", "best"),
        ("adv_estimator", "gigpo"),
        ("train_infer_correction", {"is_weight": {"enabled": True, "weight_type": "sequence"}}),
        ("train_infer_correction", "on"),
        ("pure_opd_pipeline_type", "rlvr_vlm"),
        ("entropy_loss_coef", 0.01),
    ],
)
def test_settings_of_rolls_loss_without_an_equal_are_listed(key: str, value: Any, roll: Convert) -> None:
    config, unmapped = roll(**{key: value})
    assert config.on_policy.enabled
    assert unmapped[key]["value"] == value


def test_several_teachers_share_the_prompts_by_tag(roll: Convert) -> None:
    def worker(model: str, **settings: Any) -> JsonObject:
        return {"model_args": {"model_name_or_path": model}, "device_mapping": "list(range(0,4))", **settings}

    math = worker("Qwen/Qwen3-32B", tag_included=["deepmath", "aime"], opd_kl_coef=0.7)
    code = worker("Qwen/Qwen3-14B", tag_included=["code"])
    config, unmapped = roll(teacher={"math": math, "code": code})
    found = {one.name: (one.model, one.routes, one.kl_coef) for one in config.on_policy.teachers}
    assert found == {"math": ("Qwen/Qwen3-32B", ("deepmath", "aime"), 0.7), "code": ("Qwen/Qwen3-14B", ("code",), None)}
    assert (config.on_policy.route_by, config.on_policy.unrouted, config.on_policy.kl_coef) == ("tag", "no_kl", 0.5)
    assert unmapped.keys() >= {"teacher.math.device_mapping", "teacher.code.device_mapping"}
    assert "teacher" not in unmapped
    both = {"math": math, "all": worker("Qwen/Qwen3-14B")}
    config, unmapped = roll(teacher=both)
    assert config.on_policy.unrouted == "error"
    assert "adds up their KL" in unmapped["teacher"]["reason"]
    config, _ = roll(teacher=math)
    assert [one.routes for one in config.on_policy.teachers] == [("deepmath", "aime")]


def test_where_no_teacher_is_named_the_student_without_its_adapter_is_one(roll_body: JsonObject, roll: Convert) -> None:
    config, unmapped = roll("teacher")
    assert not config.on_policy.enabled
    assert "has no teacher" in unmapped["teacher"]["reason"]
    train = roll_body["student_train"]
    train["model_args"] |= {"lora_target": "all-linear", "lora_rank": 8}
    config, _ = roll("teacher", student_train=train)
    assert config.on_policy.enabled
    assert [one.kind for one in config.on_policy.teachers] == ["base"]
    elsewhere = {"model_args": {"model_name_or_path": "${oc.env:TEACHER}"}}
    config, unmapped = roll(teacher=elsewhere, student_train=train)
    assert not config.on_policy.enabled
    assert unmapped["teacher"]["value"] == elsewhere


def test_self_distillation_hints_the_student_before_training(roll: Convert) -> None:
    student = {"model_args": {"model_name_or_path": "Qwen/Qwen3-8B"}}
    changes = {"opsd_mode": True, "opsd_solution_key": "solution", "teacher": student}
    config, _ = roll(**changes)
    (teacher,) = config.on_policy.teachers
    assert (teacher.kind, teacher.hint) == ("base", "Reference solution:\n{{ solution }}")


def test_a_teacher_that_cannot_score_is_learnt_from_by_what_it_writes(roll: Convert) -> None:
    model = "anthropic/claude-sonnet-4.5"
    config, unmapped = roll(teacher={"model_args": {"model_name_or_path": model}})
    assert (config.sft.enabled, config.on_policy.enabled, config.teacher.model) == (True, False, model)
    assert "teacher.base_url" in unmapped["teacher"]["reason"]
