from pathlib import Path
from typing import Any

import pytest

from examples.embedded.shop import CALCULATOR_SCHEMA
from stillhouse.dataset.rows import candidate_row
from stillhouse.dataset.schema import COLUMNS
from stillhouse.dataset.table import TableWriter
from stillhouse.types import PromptMetadata, StopReason, Trajectory, Turn


def call(number: int, arguments: str) -> dict[str, Any]:
    function = {"name": "calculator", "arguments": arguments}
    return {"id": f"call_{number}", "type": "function", "function": function, "extra_content": {"signature": "x"}}


MESSAGES: list[Any] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "2 + 3, 4 + 5?"},
    {
        "role": "assistant", "content": "Two sums.", "reasoning_content": "hm", "refusal": None,
        "tool_calls": [call(0, '{"expression":"2+3"}'), call(1, '{"expression": "4+5"}')],
    },
    {"role": "tool", "tool_call_id": "call_0", "name": "calculator", "content": "5"},
    {"role": "tool", "tool_call_id": "call_1", "name": "calculator", "content": "9"},
    {"role": "assistant", "content": "5 and 9."},
]  # fmt: skip


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    """Three training rows, one to validate with and one rejected."""
    folder = tmp_path / "dataset"
    folder.mkdir()
    turns = [Turn("tool_calls", {}, 0.0, "m"), Turn("stop", {}, 0.0, "m")]
    about = PromptMetadata("p", "5, 9", "sums", "list", {"level": 3, "teacher": "somebody else"})
    for name, numbers in {"train": range(3), "validation": range(3, 4), "rejected": range(4, 5)}.items():
        with TableWriter(folder / f"{name}.parquet", COLUMNS) as writer:
            for number in numbers:
                messages = MESSAGES if number else [MESSAGES[1], {"role": "assistant", "content": "14"}]
                trajectory = Trajectory(
                    f"{number}", "p", number, messages, [CALCULATOR_SCHEMA] if number else [], turns,
                    StopReason.ANSWERED, "teacher-1",
                )  # fmt: skip
                row = candidate_row(trajectory, about, {"verified": True}, None)
                writer.write({column.name: None for column in COLUMNS} | row | {"split": name})
    (folder / "README.md").write_text(
        "---\nlicense: mit\nconfigs:\n- config_name: default\n  data_files: train.parquet\n---\n\n# Sums\n\nA card.\n"
    )
    return folder
