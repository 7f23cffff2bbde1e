"""Files in the forms that other programs write, small and by hand, after those programs' own code."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

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
