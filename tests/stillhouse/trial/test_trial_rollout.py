"""A scored rollout: its reward, the errors of its tools, and its file, which `convert` reads back."""

import asyncio
import json
from pathlib import Path

import pytest

from stillhouse.errors import InputError
from stillhouse.interop import convert
from stillhouse.store.records import read_jsonl
from stillhouse.tools import RewardArgs, RewardSet, reward
from stillhouse.trial.rollout import ScoredRollout
from stillhouse.types import Message, PromptMetadata, StopReason, Trajectory, Turn

CALL = {"id": "call_0", "type": "function", "function": {"name": "look_up", "arguments": "{}"}}
MESSAGES: list[Message] = [
    {"role": "user", "content": "What is 2 + 2?"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},  # type: ignore[list-item]
    {"role": "tool", "tool_call_id": "call_0", "content": '{"error": "ValueError: no such page"}'},
    {"role": "assistant", "content": "4", "reasoning_content": "Two and two."},
]
METADATA = PromptMetadata("p", "4", "sums", "numeric", {"level": 1})


@reward
def brief(args: RewardArgs, messages: list[Message]) -> float:
    return 0.5


@reward
def judged(args: RewardArgs, messages: list[Message]) -> float:
    raise OSError("the judge is down")


def trajectory(stop_reason: StopReason = StopReason.ANSWERED) -> Trajectory:
    turn = Turn("stop", {"prompt_tokens": 10, "completion_tokens": 5}, 0.1, "m", cost_usd=0.002, num_tool_errors=1)
    error = {"kind": "server", "message": "HTTP 500"} if stop_reason is StopReason.ERROR else None
    return Trajectory("k" * 64, "p", 0, MESSAGES, [], [turn, turn], stop_reason, "m", error)  # type: ignore[arg-type]


def scored(*rewards: object, stop_reason: StopReason = StopReason.ANSWERED) -> ScoredRollout:
    return asyncio.run(ScoredRollout.of(trajectory(stop_reason), METADATA, RewardSet(rewards)))  # type: ignore[arg-type]


def test_the_reward_is_that_of_the_functions_or_else_the_verdict() -> None:
    assert (scored().reward, scored().verdict) == (1.0, True)
    assert scored(brief).reward == 0.5
    assert scored(brief, judged).reward is None
    assert scored(brief, stop_reason=StopReason.ERROR).scores.values == {}


def test_its_file_has_the_keys_of_rnow_and_what_failed(tmp_path: Path) -> None:
    row = scored(brief, judged).as_json()
    assert row["rewards"] == {"brief": 0.5, "judged": "error"}
    assert row["errors"] == ["judged: OSError: the judge is down"]
    assert row["tool_errors"] == ["ValueError: no such page"]
    assert row["metadata"] == {"level": 1, "expected_answer": "4", "tag": "sums"}
    assert (row["turns"], row["promptTokens"], row["completion"], row["cost_usd"]) == (2, 20, 10, 0.004)
    failed = scored(stop_reason=StopReason.ERROR).as_json()
    assert (failed["completed"], failed["success"], failed["error"]) == ("error", False, "HTTP 500")


def test_convert_reads_the_files_back(tmp_path: Path) -> None:
    (tmp_path / "rollouts").mkdir()
    (tmp_path / "rollouts/one.json").write_text(json.dumps(scored().as_json()))
    report = convert(tmp_path / "rollouts", tmp_path / "out")
    assert report.trajectories == 1
    keys = {example.key for reason in report.unmapped.values() for _, example in reason.examples}
    assert keys == {"total_reward", "tool_errors", "tools", "usage"}
    (back,) = read_jsonl(tmp_path / "out/trajectories.jsonl")
    assert (back["messages"], back["model"]) == (MESSAGES, "m")
    (tmp_path / "rollouts/one.json").write_text(json.dumps(scored(stop_reason=StopReason.ERROR).as_json()))
    with pytest.raises(InputError, match="HTTP 500"):
        convert(tmp_path / "rollouts", tmp_path / "out")
