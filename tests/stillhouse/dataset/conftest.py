from collections.abc import Callable
from typing import Any

import pytest

from examples.embedded.shop import CALCULATOR_SCHEMA
from stillhouse.types import PromptMetadata, StopReason, Trajectory, Turn

Make = Callable[..., Trajectory]


@pytest.fixture
def make_trajectory() -> Make:
    """A finished two-turn trajectory of the shop task whose answer is 5, unless told otherwise."""

    def make(number: int = 0, **changes: Any) -> Trajectory:
        call = {
            "id": "call_1",
            "type": "function",
            "function": {"name": "calculator", "arguments": '{"expression": "2 + 3"}'},
        }
        answer = changes.pop("answer", "The answer is 5.")
        fields: dict[str, Any] = {
            "rollout_key": f"{number:064x}",
            "prompt_id": f"prompt-{number}",
            "sample_index": 0,
            "messages": [
                {"role": "user", "content": f"Anna has 2 apples. Anna buys 3 more. Case {number}."},
                {"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "call_1", "content": "5"},
                {"role": "assistant", "content": answer},
            ],
            "tools": [CALCULATOR_SCHEMA],
            "turns": [
                Turn("tool_calls", {"prompt_tokens": 10, "completion_tokens": 7}, 0.5, "teacher-1", cost_usd=0.25),
                Turn("stop", {"prompt_tokens": 30, "completion_tokens": 5}, 0.25, "teacher-1", cost_usd=0.5),
            ],
            "stop_reason": StopReason.ANSWERED,
            "model": "teacher",
        }
        return Trajectory(**{**fields, **changes})

    return make


@pytest.fixture
def metadata_for() -> Callable[..., dict[str, PromptMetadata]]:
    def make(trajectories: list[Trajectory], expected: str | None = "5") -> dict[str, PromptMetadata]:
        return {
            t.prompt_id: PromptMetadata(t.prompt_id, expected, "sums", "numeric", {"k": [1, None]})
            for t in trajectories
        }

    return make
