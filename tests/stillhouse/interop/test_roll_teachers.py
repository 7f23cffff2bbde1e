from collections.abc import Callable
from typing import Any

from stillhouse.config import DistillConfig
from stillhouse.types import JsonObject

Converted = Callable[..., tuple[DistillConfig, dict[str, JsonObject]]]


def test_several_teachers_share_the_prompts_by_tag(roll: Converted) -> None:
    def worker(model: str, **settings: Any) -> JsonObject:
        return {"model_args": {"model_name_or_path": model}, "device_mapping": "list(range(0,4))", **settings}

    math = worker("Qwen/Qwen3-32B", tag_included=["deepmath", "aime"], opd_kl_coef=0.7)
    code = worker("Qwen/Qwen3-14B", tag_included=["code"])
    config, unmapped = roll(teacher={"math": math, "code": code})
    found = {one.name: (one.model, one.routes, one.kl_coef) for one in config.on_policy.teachers}
    assert found == {
        "math": ("Qwen/Qwen3-32B", ("deepmath", "aime"), 0.7),
        "code": ("Qwen/Qwen3-14B", ("code",), None),
    }
    assert (config.on_policy.route_by, config.on_policy.unrouted, config.on_policy.kl_coef) == ("tag", "no_kl", 0.5)
    assert unmapped.keys() >= {"teacher.math.device_mapping", "teacher.code.device_mapping"}
    assert "teacher" not in unmapped
    both = {"math": math, "all": worker("Qwen/Qwen3-14B")}
    config, unmapped = roll(teacher=both)
    assert config.on_policy.unrouted == "error"
    assert "adds up their KL" in unmapped["teacher"]["reason"]
    config, _ = roll(teacher=math)
    assert [one.routes for one in config.on_policy.teachers] == [("deepmath", "aime")]


def test_where_no_teacher_is_named_the_student_without_its_adapter_is_one(
    roll_body: JsonObject, roll: Converted
) -> None:
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


def test_self_distillation_hints_the_student_before_training(roll: Converted) -> None:
    student = {"model_args": {"model_name_or_path": "Qwen/Qwen3-8B"}}
    changes = {"opsd_mode": True, "opsd_solution_key": "solution", "teacher": student}
    config, _ = roll(**changes)
    (teacher,) = config.on_policy.teachers
    assert (teacher.kind, teacher.hint) == ("base", "Reference solution:\n{{ solution }}")


def test_a_teacher_that_cannot_score_is_learnt_from_by_what_it_writes(roll: Converted) -> None:
    model = "anthropic/claude-sonnet-4.5"
    config, unmapped = roll(teacher={"model_args": {"model_name_or_path": model}})
    assert (config.sft.enabled, config.on_policy.enabled, config.teacher.model) == (True, False, model)
    assert "teacher.base_url" in unmapped["teacher"]["reason"]
