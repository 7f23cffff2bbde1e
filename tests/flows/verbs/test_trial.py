"""`stillhouse test`: rollouts as they end, a file each, and no completion requested twice."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.provider import ReceivedRequest, Reply, SimulatedProvider, error

Shell = Callable[..., tuple[int, str]]
REWARDS = """
from stillhouse.tools import RewardArgs, reward
from stillhouse.types import Message


@reward
def brief(args: RewardArgs, messages: list[Message]) -> float:
    return 0.5
"""


@pytest.fixture
def provider(knowing_teacher: Callable[[ReceivedRequest], Reply]) -> Iterator[SimulatedProvider]:
    with SimulatedProvider(knowing_teacher) as provider:
        yield provider


@pytest.fixture
def config(tmp_path: Path, embedded_rows: list[dict[str, Any]], provider: SimulatedProvider) -> Path:
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in embedded_rows))
    (tmp_path / "rewards.py").write_text(REWARDS)
    body = {
        "prompts": {"source": "prompts.jsonl", "held_out_fraction": 0.0},
        "teacher": {"model": "simulated", "base_url": provider.url},
        "tools": {"builtin": ["calculator"], "rewards_file": "rewards.py"},
        "dataset": {"labels": {"render": False}, "validation_fraction": 0.0},
        "tracking": {"enabled": False},
        "runtime": {"api_key_env": "STILLHOUSE_TEST_KEY"},
    }
    # JSON is YAML.
    (tmp_path / "config.yaml").write_text(json.dumps(body))
    return tmp_path / "config.yaml"


def test_each_rollout_is_shown_and_kept_and_none_is_paid_twice(
    shell: Shell, config: Path, provider: SimulatedProvider, embedded_rows: list[dict[str, Any]]
) -> None:
    code, output = shell("test", "config.yaml", "-n", "2")
    assert code == 0, output
    for row in embedded_rows[:2]:
        assert row["prompt"][:40] in output
    assert "calculator(" in output
    assert "mean reward 0.500 (brief 0.500)" in output
    assert "2 rollouts, 0 failed, 2 of 2 right, 0 of 1 tool calls failed" in output
    files = sorted((config.parent / "rollouts").iterdir())
    rollouts = [json.loads(file.read_bytes()) for file in files]
    assert {one["metadata"]["expected_answer"] for one in rollouts} == {
        row["metadata"]["expected_answer"] for row in embedded_rows[:2]
    }
    assert all(one["rewards"] == {"brief": 0.5} for one in rollouts)

    num_asked = len(provider.ledger)
    again = shell("test", "config.yaml", "-n", "2")
    assert (again[0], len(provider.ledger)) == (0, num_asked)
    assert sorted((config.parent / "rollouts").iterdir()) == files
    code, output = shell("generate", "config.yaml", "-n", "2")
    assert (code, len(provider.ledger)) == (0, num_asked), output
    code, output = shell("test", "config.yaml", "-e", "5", "-o", "other")
    assert (code, len(list((config.parent / "other").iterdir()))) == (0, 1), output
    assert embedded_rows[5]["prompt"][:40] in output


def test_a_rollout_that_fails_is_shown_and_makes_the_command_fail(
    shell: Shell, config: Path, provider: SimulatedProvider
) -> None:
    known = provider.script
    provider.script = lambda request: known(request) if request.index else error(400, "not today")
    code, output = shell("test", "config.yaml", "-n", "2", "--set", "runtime.concurrency=1")
    assert code == 1
    assert "not today" in output
    assert "2 rollouts, 1 failed" in output
    assert "]: 1 of 2 rollouts failed" in output
    assert len(list((config.parent / "rollouts").iterdir())) == 2


def test_a_preview_shows_rows_as_the_student_sees_them_and_the_run_pays_for_none_of_them_again(
    shell: Shell, config: Path, provider: SimulatedProvider
) -> None:
    rendered = ("--set", "dataset.labels.render=true")
    code, output = shell("generate", "config.yaml", "--preview", "3", *rendered)
    assert code == 0, output
    assert "<|im_start|>assistant" in output
    assert output.count(" tokens learnt") == 3
    assert "3 of 3 rows pass the filters" in output
    # Each second question takes a call of the calculator first.
    assert len(provider.ledger) == 5
    again = shell("generate", "config.yaml", "--preview", "3", *rendered)
    assert (again[0], len(provider.ledger)) == (0, 5)
    code, output = shell("generate", "config.yaml", *rendered)
    assert (code, len(provider.ledger)) == (0, 12), output
