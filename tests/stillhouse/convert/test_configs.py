import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from stillhouse.config import DistillConfig, load_config
from stillhouse.convert import convert
from stillhouse.errors import ConfigError, InputError
from stillhouse.prompts import load_prompts
from stillhouse.store.records import read_jsonl, read_trajectories
from stillhouse.types import JsonObject

Write = Callable[..., Path]
RNOW: JsonObject = {
    "project_name": "Distilled Agent",
    "project_id": "",
    "dataset_type": "distill",
    "data": {"train_file": "train.jsonl", "batch_size": 4, "group_size": 8, "val_split": 0.2},
    "model": {"path": "Qwen/Qwen3-8B", "qlora_rank": 16, "name": None},
    "teacher": {"path": "Qwen/Qwen3-32B", "agentic": True},
    "algorithm": {"loss_fn": "ppo", "adv_estimator": "grpo", "kl_penalty_coef": 0.1},
    "rollout": {
        "max_turns": 10,
        "max_tokens": 4096,
        "max_context_window": 16384,
        "termination_policy": "last_tool",
        "reasoning_mode": "disabled",
        "mcp_url": "localhost:8931",
        "tool_timeout": 30,
        "rollout_timeout": 900,
        "max_tool_response": 500,
    },
    "trainer": {"num_epochs": 3, "learning_rate": 5e-5, "save_step": 20, "max_billing": 10.0},
    "evals": [{"eval_id": "e1", "step": 10}],
}
ROLL = """
exp_name: "qwen3-8B-opd"
seed: 42
output_dir: ./output/
system_envs:
  HF_TOKEN: very-private
track_with: wandb
tracker_kwargs:
  api_key: dce12064d30900b2cc538f73e82997de5aafbb96
  project: opd
max_steps: 1024
save_steps: 100
rollout_batch_size: 32
prompt_length: 2048
response_length: 4096
sequence_length: 6144
num_return_sequences_in_group: 4
pretrain: Qwen/Qwen3-8B
opd_kl_coef: 0.5
student_train:
  model_args:
    model_name_or_path: ${pretrain}
    dtype: bf16
    attn_implementation: fa2
  training_args:
    learning_rate: 5.0e-7
    weight_decay: 0.1
    per_device_train_batch_size: 1
    gradient_accumulation_steps: 8
    warmup_steps: 20
  data_args:
    file_name:
      - data/math.jsonl
    template: qwen3
  strategy_args:
    strategy_name: megatron_train
  device_mapping: list(range(0,8))
student_infer:
  model_args:
    model_name_or_path: ${pretrain}
  generating_args:
    max_new_tokens: ${response_length}
    top_p: 0.99
    temperature: 0.99
    num_return_sequences: ${num_return_sequences_in_group}
teacher:
  model_args:
    model_name_or_path: Qwen/Qwen3-32B
  device_mapping: list(range(0,8))
rewards:
  math_rule:
    worker_cls: roll.pipeline.rlvr.rewards.math_rule_reward_worker.MathRuleRewardWorker
    tag_included: [deepmath, aime]
    world_size: 8
  code_sandbox:
    worker_cls: roll.pipeline.rlvr.rewards.code_sandbox_reward_worker.CodeSandboxRewardWorker
  ifeval:
    worker_cls: roll.pipeline.rlvr.rewards.ifeval_rule_reward_worker.GeneralRuleRewardWorker
"""


def _rnow(**changes: Any) -> str:
    body = {key: value for key, value in {**RNOW, **changes}.items() if value is not None}
    return yaml.safe_dump(body)


def _converted(source: Path) -> tuple[DistillConfig, dict[str, JsonObject]]:
    """The config, and what was not mapped by its key."""
    folder = source.parent / "out"
    convert(source, folder)
    unmapped = {row["key"]: row for row in read_jsonl(folder / "unmapped.jsonl")}
    return load_config(folder / "config.yaml"), unmapped


def test_every_key_of_an_rnow_config_is_written_or_listed(tmp_path: Path, write: Write) -> None:
    config, unmapped = _converted(write(tmp_path / "config.yml", _rnow()))
    assert (config.sft.enabled, config.on_policy.enabled) == (False, True)
    assert (config.student.model, config.teacher.model) == ("Qwen/Qwen3-8B", "Qwen/Qwen3-32B")
    assert (config.student.lora_rank, config.student.lora_alpha, config.student.max_length) == (16, 32.0, 16384)
    assert (config.on_policy.prompts_per_step, config.on_policy.group_size) == (4, 8)
    assert (config.on_policy.kl_coef, config.on_policy.learning_rate) == (0.1, 5e-5)
    assert (config.on_policy.max_turns, config.rollouts.max_turns, config.on_policy.max_tokens) == (10, 10, 4096)
    assert (config.rollouts.timeout_s, config.tools.timeout_s) == (900.0, 30.0)
    assert config.rollouts.reasoning_effort == "none"
    assert config.tools.mcp[0].url == "http://localhost:8931/mcp"
    assert config.dataset.validation_fraction == 0.2
    assert config.tracking.experiment == "Distilled Agent"
    assert unmapped.keys() >= {
        "algorithm.loss_fn",
        "algorithm.adv_estimator",
        "trainer.num_epochs",
        "trainer.max_billing",
        "rollout.max_tool_response",
        "teacher.agentic",
        "evals",
        "data",
    }
    assert unmapped["algorithm.loss_fn"]["value"] == "ppo"
    assert unmapped["data"]["value"] == "train.jsonl"


def test_a_project_of_rnow_comes_with_its_rows_tools_and_rewards(tmp_path: Path, write: Write) -> None:
    answered = [{"role": "user", "content": "What is 2 + 2?"}, {"role": "assistant", "content": "4"}]
    write(tmp_path / "train.jsonl", {"messages": answered})
    write(tmp_path / "tools.py", "")
    write(tmp_path / "rewards.py", "")
    source = write(tmp_path / "config.yml", _rnow(dataset_type="sft", teacher=None, algorithm=None, rollout=None))
    config, unmapped = _converted(source)
    assert (config.sft.enabled, config.on_policy.enabled) == (True, False)
    assert (config.sft.num_epochs, config.sft.batch_size, config.sft.checkpoint_every_steps) == (3, 4, 20)
    (prompt,) = load_prompts(config.prompts).prompts
    assert config.rollouts.trajectories_file is not None
    (trajectory,) = read_trajectories(Path(config.rollouts.trajectories_file))
    assert (trajectory.prompt_id, trajectory.messages) == (prompt.id, answered)
    assert config.tools.file == str(tmp_path / "tools.py")
    assert config.tools.rewards_file == str(tmp_path / "rewards.py")
    assert unmapped.keys() >= {"tools.py", "rewards.py", "teacher", "data.group_size"}


@pytest.mark.parametrize("mode", ["rl", "midtrain"])
def test_modes_that_are_not_offered_train_nothing_and_say_so(tmp_path: Path, write: Write, mode: str) -> None:
    config, unmapped = _converted(write(tmp_path / "config.yml", _rnow(dataset_type=mode, teacher=None)))
    assert (config.sft.enabled, config.on_policy.enabled) == (False, False)
    assert unmapped["dataset_type"]["value"] == mode


def test_unknown_keys_and_values_that_would_be_refused_are_listed(tmp_path: Path, write: Write) -> None:
    changes = {
        "surprise": {"deep": 1},
        "model": {"path": ["Qwen/Qwen3-8B", "Qwen/Qwen3-32B"], "qlora_rank": 0},
        "data": {"batch_size": "four", "val_split": 1},
    }
    config, unmapped = _converted(write(tmp_path / "config.yml", _rnow(**changes)))
    assert unmapped["surprise"]["value"] == {"deep": 1}
    assert "has no counterpart" in unmapped["surprise"]["reason"]
    assert "greater than or equal to 1" in unmapped["model.qlora_rank"]["reason"]
    assert "valid integer" in unmapped["data.batch_size"]["reason"]
    assert unmapped["data.val_split"]["value"] == 1
    assert unmapped["model.path"]["value"] == ["Qwen/Qwen3-8B", "Qwen/Qwen3-32B"]
    assert config.on_policy.kl_coef == 0.1


SECRET = "tvly-0123456789abcdef"


def test_secrets_are_neither_copied_nor_listed(tmp_path: Path, write: Write) -> None:
    rollout = {**RNOW["rollout"], "mcp_url": f"https://mcp.example.org/mcp/?apiKey={SECRET}"}
    extra = {"api_key": SECRET, "docker_env": {"TOKEN": SECRET}, "nested": {"list": [{"password": SECRET}]}}
    _, unmapped = _converted(write(tmp_path / "config.yml", _rnow(rollout=rollout, **extra)))
    assert all(SECRET not in file.read_text() for file in (tmp_path / "out").iterdir())
    assert unmapped["docker_env"]["value"] == {"TOKEN": "(not shown)"}
    assert unmapped["nested"]["value"] == {"list": [{"password": "(not shown)"}]}
    assert "never copied" in unmapped["rollout.mcp_url"]["reason"]


def test_every_key_of_a_roll_config_is_written_or_listed(tmp_path: Path, write: Write) -> None:
    row = {"id": "0", "prompt": "3x + 5 = 14", "tag": "deepmath", "ground_truth": "3"}
    write(tmp_path / "data/math.jsonl", row, json.dumps(row)[:20])
    config, unmapped = _converted(write(tmp_path / "opd.yaml", ROLL))
    assert (config.sft.enabled, config.on_policy.enabled) == (False, True)
    assert (config.student.model, config.student.parameters, config.student.dtype) == (
        "Qwen/Qwen3-8B",
        "full",
        "bfloat16",
    )
    assert (config.teacher.model, config.on_policy.kl_coef) == ("Qwen/Qwen3-32B", 0.5)
    assert (config.on_policy.num_steps, config.on_policy.prompts_per_step, config.on_policy.group_size) == (1024, 32, 4)
    assert (config.on_policy.max_tokens, config.on_policy.temperature, config.on_policy.max_turns) == (4096, 0.99, 1)
    assert (config.on_policy.learning_rate, config.on_policy.warmup_steps, config.on_policy.seed) == (5e-7, 20, 42)
    assert config.prompts.verifier_by_tag == {"deepmath": "math", "aime": "math", "code_sandbox": "python"}
    (prompt,) = load_prompts(config.prompts).prompts
    assert prompt.messages == [{"role": "user", "content": "3x + 5 = 14"}]
    assert unmapped.keys() >= {
        "student_infer.generating_args.top_p",
        "student_train.training_args.gradient_accumulation_steps",
        "student_train.strategy_args",
        "teacher.device_mapping",
        "rewards.ifeval",
        "tracker_kwargs",
        "system_envs",
        None,  # the torn row
    }
    assert unmapped["tracker_kwargs"]["value"] == {"api_key": "(not shown)", "project": "opd"}
    written = "".join(file.read_text() for file in (tmp_path / "out").iterdir())
    assert "very-private" not in written
    assert "dce12064" not in written


def test_mixed_rewards_and_several_teachers_are_told_of(tmp_path: Path, write: Write) -> None:
    body = yaml.safe_load(ROLL)
    body["actor_train"], body["actor_infer"] = body.pop("student_train"), body.pop("student_infer")
    mixed = {**body, "use_opd": True}
    config, unmapped = _converted(write(tmp_path / "mixed/rlvr.yaml", yaml.safe_dump(mixed)))
    assert config.on_policy.enabled
    assert "mixes rewards" in unmapped["use_opd"]["reason"]
    several = {**body, "teacher": {"math": body["teacher"], "code": body["teacher"]}}
    config, unmapped = _converted(write(tmp_path / "several/rlvr.yaml", yaml.safe_dump(several)))
    assert not config.on_policy.enabled
    assert unmapped["teacher"]["value"].keys() == {"math", "code"}
    del several["teacher"]
    config, unmapped = _converted(write(tmp_path / "none/rlvr.yaml", yaml.safe_dump(several)))
    assert not config.on_policy.enabled
    assert "there is no teacher" in unmapped["teacher"]["reason"]


def test_references_are_followed_but_not_in_circles(tmp_path: Path, write: Write) -> None:
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
    config, unmapped = _converted(write(tmp_path / "opd.yaml", yaml.safe_dump(body)))
    assert (config.student.model, config.teacher.model) == ("Qwen/Qwen3-8B", "Qwen/Qwen3-8B")
    assert unmapped["exp_name"]["reason"] == "refers to what is not in this file"
    assert unmapped.keys() >= {"base", "loop", "rewards", "pure_opd_pipeline_type"}


def test_a_file_that_is_no_known_config_is_refused(tmp_path: Path, write: Write) -> None:
    source = write(tmp_path / "config.yaml", "sft: {num_epochs: 1}\n")
    with pytest.raises(InputError, match="has the keys sft; expected dataset_type"):
        convert(source, tmp_path / "out")
    rnow = write(tmp_path / "config.yml", _rnow())
    with pytest.raises(ConfigError, match=r"--from roll-config: .*looks like rnow-config"):
        convert(rnow, tmp_path / "out", "roll-config")
    with pytest.raises(InputError, match="cannot be read as YAML"):
        convert(write(tmp_path / "torn.yml", "a: [1\nb"), tmp_path / "out")
    with pytest.raises(InputError, match="no such file"):
        convert(tmp_path / "absent.yml", tmp_path / "out")
    assert not (tmp_path / "out").exists()
