"""Files in the forms that other programs write, small and by hand, after those programs' own code."""

import json
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml

from stillhouse.config import DistillConfig, load_config
from stillhouse.interop import convert
from stillhouse.store.records import read_jsonl
from stillhouse.types import JsonObject

NAVIGATE = {"name": "browser_navigate", "arguments": '{"url": "https://example.org/NCT01234567"}'}
ASKED = [
    {"role": "system", "content": "You are a research assistant."},
    {"role": "user", "content": "Find NCT01234567"},
]
SAID = [
    {"role": "assistant", "content": "", "tool_calls": [{"id": "call_1", "type": "function", "function": NAVIGATE}]},
    {"role": "tool", "tool_call_id": "call_1", "content": "# Study NCT01234567"},
    {"role": "assistant", "content": "The active ingredient is pembrolizumab."},
]
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


@pytest.fixture(scope="session")
def rollout() -> Callable[..., JsonObject]:
    """A rollout file of `rnow test`, with changes; a change to None removes the key."""

    def make(**changes: Any) -> JsonObject:
        row = {
            "id": "sample_1",
            "completed": True,
            "success": True,
            "total_reward": 1.0,
            "rewards": {"accuracy": 1.0},
            "errors": [],
            "turns": 2,
            "truncated": False,
            "totalTokens": 812,
            "promptTokens": 700,
            "metadata": {"expected_answer": "pembrolizumab", "tag": "trials"},
            "conversation": [*ASKED, *SAID],
        }
        return {key: value for key, value in {**row, **changes}.items() if value is not None}

    return make


@pytest.fixture(scope="session")
def write() -> Callable[..., Path]:
    """Writes rows as JSON lines, or one object as JSON, by the file's ending; text as it is."""

    def to(path: Path, *rows: Any) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(row if isinstance(row, str) else json.dumps(row) + "\n" for row in rows))
        return path

    return to


@pytest.fixture
def rnow_body() -> JsonObject:
    """An rnow config, the test's own to change."""
    return deepcopy(RNOW)


@pytest.fixture
def roll_body() -> JsonObject:
    """A ROLL config, the test's own to change."""
    return yaml.safe_load(ROLL)


@pytest.fixture
def converted(tmp_path: Path) -> Callable[..., tuple[DistillConfig, dict[str, JsonObject]]]:
    """Converts a config to `tmp_path/out`; the config, and what was not mapped by its key."""

    def run(file: str, body: JsonObject) -> tuple[DistillConfig, dict[str, JsonObject]]:
        source, folder = tmp_path / file, tmp_path / "out"
        source.write_text(yaml.safe_dump(body))
        convert(source, folder)
        unmapped = {row["key"]: row for row in read_jsonl(folder / "unmapped.jsonl")}
        return load_config(folder / "config.yaml"), unmapped

    return run


@pytest.fixture
def rnow(rnow_body: JsonObject, converted: Callable[..., Any]) -> Callable[..., Any]:
    """`converted` of the rnow config with changes; a change to None removes the key."""

    def run(**changes: Any) -> Any:
        body = {**rnow_body, **changes}
        return converted("config.yml", {key: value for key, value in body.items() if value is not None})

    return run


@pytest.fixture
def roll(roll_body: JsonObject, converted: Callable[..., Any]) -> Callable[..., Any]:
    """`converted` of the ROLL config, some keys dropped and some changed."""

    def run(*drop: str, **changes: Any) -> Any:
        return converted("opd.yaml", {key: value for key, value in roll_body.items() if key not in drop} | changes)

    return run
