"""Pipelines of ROLL that train on given rows: distillation on answers, SFT, DPO."""

from collections.abc import Callable
from pathlib import Path

import pytest

from stillhouse.config import DistillConfig
from stillhouse.errors import ConfigError, InputError
from stillhouse.types import JsonObject

Convert = Callable[..., tuple[DistillConfig, dict[str, JsonObject]]]
WORKER = {"training_args": {"learning_rate": 2.0e-5}, "data_args": {"file_name": ["data/gsm8k.json"]}}


@pytest.mark.parametrize(
    ("objective", "kind"),
    [("forward_kl", "forward_kl"), ("js_divergence", "jsd"), ("skewed_reverse_kl", "skewed_reverse_kl")],
)
def test_distillation_on_given_answers_keeps_its_divergence(objective: str, kind: str, converted: Convert) -> None:
    body = {
        "student_pretrain": "Qwen/Qwen2.5-7B-Instruct",
        "teacher_pretrain": "Qwen/Qwen2.5-14B-Instruct",
        "kd_objective": objective,
        "logits_topk": 32,
        "distill_loss_weight": 0.85,
        "question_key": "question_zh",
        "student": WORKER,
        "teacher": {"strategy_args": {"strategy_name": "megatron_infer"}},
    }
    config, unmapped = converted("distill.yaml", body)
    assert (config.student.model, config.teacher.model) == ("Qwen/Qwen2.5-7B-Instruct", "Qwen/Qwen2.5-14B-Instruct")
    (term,) = config.on_policy.divergence
    assert (term.kind, term.top_k) == (kind, 32 if kind == "forward_kl" else None)
    assert (config.on_policy.learning_rate, config.on_policy.trainer.schedule, config.on_policy.trainer.betas[1]) == (
        2e-5,
        "linear",
        0.999,
    )
    assert "the student samples" in unmapped["kd_objective"]["reason"]
    assert unmapped["distill_loss_weight"]["is_approximated"]


def test_supervised_training_becomes_sft_on_the_named_file(converted: Convert, tmp_path: Path) -> None:
    body = {"pretrain": "Qwen/Qwen2.5-7B", "prompt_key": "instruction", "save_steps": 100, "sft_train": WORKER}
    config, unmapped = converted("sft.yaml", body)
    assert (config.sft.enabled, config.on_policy.enabled, config.sft.dataset_weight) == (True, False, 0.0)
    assert [source.path for source in config.sft.sources] == [str(tmp_path / "data/gsm8k.json")]
    assert (config.sft.num_epochs, config.sft.learning_rate, config.sft.trainer.schedule) == (1, 2e-5, "linear")
    assert (config.student.model, config.student.parameters) == ("Qwen/Qwen2.5-7B", "full")
    assert "rename the columns" in unmapped["prompt_key"]["reason"]


def test_training_on_preferences_is_refused_by_its_keys(converted: Convert) -> None:
    with pytest.raises(ConfigError, match="chosen_key and rejected_key"):
        converted("dpo.yaml", {"actor_train": {}, "chosen_key": "chosen", "rejected_key": "rejected"})


def test_an_empty_file_is_refused_as_such(converted: Convert) -> None:
    with pytest.raises(InputError, match="no key"):
        converted("empty.yaml", None)
