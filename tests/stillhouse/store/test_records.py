from dataclasses import replace
from pathlib import Path

import pytest

from stillhouse.errors import InputError
from stillhouse.store.records import read_jsonl, read_trajectories, write_jsonl
from stillhouse.types import StopReason, Trajectory, Turn

TRAJECTORY = Trajectory(
    rollout_key="k",
    prompt_id="p",
    sample_index=0,
    messages=[
        {"role": "user", "content": "2 + 2?"},
        {
            "role": "assistant",
            "content": None,
            "reasoning_details": [{"opaque": {"b": None, "a": "\u2028"}}],
            "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a":  1}'}}],
        },
        {"role": "tool", "tool_call_id": "1", "content": "4"},
    ],
    tools=[{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}],
    turns=[Turn(finish_reason="tool_calls", usage={"prompt_tokens": 3}, latency_s=0.25, model="m", prompt_ids=[1, 2])],
    stop_reason=StopReason.MAX_TURNS,
    model="m",
)


def test_a_trajectory_comes_back_exactly_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    unknown_latency = replace(TRAJECTORY, turns=[replace(TRAJECTORY.turns[0], latency_s=None)])
    assert write_jsonl(path, [TRAJECTORY, unknown_latency]) == 2
    assert list(read_trajectories(path)) == [TRAJECTORY, unknown_latency]


@pytest.mark.parametrize("line", ["{", "[1]", ""])
def test_a_broken_line_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"a": 1}\n' + line + "\n")
    with pytest.raises(InputError, match=r"rows\.jsonl, line 2"):
        list(read_jsonl(path))
