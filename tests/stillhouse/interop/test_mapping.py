from typing import Any

import pytest

from stillhouse.interop.mapping import HIDDEN, is_secret, without_secrets


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("tracker_kwargs.api_key", "dce12064d30900b2cc538f73e82997de5aafbb96"),
        ("api_key", 12345),
        ("wandb_token", "abc"),
        ("db.password", "hunter2"),
        ("url", "https://mcp.example.org/mcp/?tavilyApiKey=abcd"),
        ("url", "https://user:hunter2@example.org/"),
        ("url", ["https://mcp.example.org/mcp", "https://mcp.example.org/mcp/?apiKey=abcd"]),
        ("anything", "AKIAIOSFODNN7EXAMPLE"),
        ("anything", "ghp_0123456789abcdefghijklmnopqrstuvwxyz"),
    ],
)
def test_secrets_are_known_by_name_address_and_form(key: str, value: Any) -> None:
    assert is_secret(key, value)
    shown = without_secrets(key, value)
    assert shown == HIDDEN or shown == ["https://mcp.example.org/mcp", HIDDEN]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("rollout.max_tokens", 4096),
        ("model.path", "Qwen/Qwen3-235B-A22B-Instruct-2507"),
        ("worker_cls", "roll.pipeline.rlvr.rewards.math_rule_reward_worker.MathRuleRewardWorker"),
        ("file_name", "/project/data/split_v6/train_user_based.jsonl"),
        ("url", "http://localhost:8931/mcp"),
        ("api_key", None),
        ("opsd_solution_key", "reference_solution"),
    ],
)
def test_ordinary_values_stay_readable(key: str, value: Any) -> None:
    assert not is_secret(key, value)
    assert without_secrets(key, value) == value
