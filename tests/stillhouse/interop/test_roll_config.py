import json
from collections.abc import Callable
from pathlib import Path

from stillhouse.config import DistillConfig
from stillhouse.prompts import parse_prompts
from stillhouse.types import JsonObject

Convert = Callable[..., tuple[DistillConfig, dict[str, JsonObject]]]


def test_every_key_of_a_roll_config_is_written_or_listed(
    tmp_path: Path, write: Callable[..., Path], roll: Convert
) -> None:
    row = {"id": "0", "prompt": "3x + 5 = 14", "tag": "deepmath", "ground_truth": "3"}
    write(tmp_path / "data/math.jsonl", row, json.dumps(row)[:20])
    config, unmapped = roll()
    assert (config.sft.enabled, config.on_policy.enabled) == (False, True)
    assert (config.student.model, config.student.parameters, config.student.dtype) == (
        "Qwen/Qwen3-8B",
        "full",
        "bfloat16",
    )
    assert (config.teacher.model, config.on_policy.kl_coef) == ("Qwen/Qwen3-32B", 0.5)
    assert (config.on_policy.num_steps, config.on_policy.prompts_per_step, config.on_policy.group_size) == (1024, 32, 4)
    assert (config.on_policy.max_tokens, config.on_policy.temperature, config.on_policy.max_turns) == (4096, 0.99, 1)
    assert (config.on_policy.learning_rate, config.on_policy.trainer.warmup_steps, config.on_policy.trainer.seed) == (
        5e-7,
        20,
        42,
    )
    assert config.prompts.verifier_by_tag == {"deepmath": "math", "aime": "math", "code_sandbox": "python"}
    (prompt,) = parse_prompts(config.prompts).prompts
    assert prompt.messages == [{"role": "user", "content": "3x + 5 = 14"}]
    assert (config.on_policy.reward_coef, config.on_policy.loss_fn) == (0.0, "ppo")
    assert config.on_policy.aggregation == "sequence_mean_token_mean"
    assert unmapped.keys() >= {
        "student_train.training_args.gradient_accumulation_steps",
        "student_train.strategy_args",
        "teacher.device_mapping",
        "student_infer.generating_args.top_p",
        "rewards.ifeval",
        "tracker_kwargs",
        "system_envs",
        None,  # the torn row
    }
    assert unmapped["tracker_kwargs"]["value"] == {"api_key": "(not shown)", "project": "opd"}
    written = "".join(file.read_text() for file in (tmp_path / "out").iterdir())
    assert "very-private" not in written
    assert "dce12064" not in written


def test_references_are_followed_but_not_in_circles(converted: Convert) -> None:
    body = {
        "base": "Qwen",
        "pretrain": "${base}/Qwen3-8B",
        "student_train": {"model_args": {"model_name_or_path": "${pretrain}"}},
        "teacher": {"model_args": {"model_name_or_path": "${student_train.model_args.model_name_or_path}"}},
        "loop": {"one": "${loop}", "two": "${loop}"},
        "exp_name": "${oc.env:USER}",
        "pure_opd_pipeline_type": "agentic",
        "rewards": ["math_rule"],
    }
    config, unmapped = converted("opd.yaml", body)
    assert (config.student.model, config.teacher.model) == ("Qwen/Qwen3-8B", "Qwen/Qwen3-8B")
    assert unmapped["exp_name"]["reason"] == "refers to what is not in this file"
    assert unmapped.keys() >= {"base", "loop", "rewards", "pure_opd_pipeline_type"}
