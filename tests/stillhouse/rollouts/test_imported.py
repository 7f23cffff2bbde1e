import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from stillhouse.errors import InputError
from stillhouse.prompts.row import RowProblem
from stillhouse.rollouts.imported import TrajectoryFile, parse_trajectory
from stillhouse.store.records import write_jsonl
from stillhouse.types import StopReason, Trajectory, Turn

CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}, "extra_content": {"a": None}}
TRAJECTORY = Trajectory(
    rollout_key="k",
    prompt_id="p",
    sample_index=0,
    messages=[
        {"role": "user", "content": "2 + 2?"},
        {"role": "assistant", "content": None, "tool_calls": [CALL], "reasoning_details": [{"opaque": 1}]},  # type: ignore[list-item]
        {"role": "tool", "tool_call_id": "1", "content": "4"},
        {"role": "assistant", "content": [{"type": "text", "text": "4"}]},  # type: ignore[typeddict-item]
    ],
    tools=[{"type": "function", "function": {"name": "f", "parameters": {}}}],
    turns=[Turn("tool_calls", {"prompt_tokens": 3}, 0.25, "m"), Turn("stop", {}, None, "m", cost_usd=1.0)],
    stop_reason=StopReason.ANSWERED,
    model="m",
    error={"kind": "timeout", "message": "late", "status": 504},
)
ROW: dict[str, Any] = orjson.loads(orjson.dumps(TRAJECTORY))
Change = Callable[[dict[str, Any]], object]


def changed(change: Change) -> dict[str, Any]:
    row = copy.deepcopy(ROW)
    change(row)
    return row


def test_a_row_is_kept_as_it_was_read() -> None:
    assert parse_trajectory(ROW) == TRAJECTORY
    odd = changed(lambda row: row["messages"][1].update(tool_calls=["not a call", {"function": 5}]))
    assert parse_trajectory(odd).messages == odd["messages"]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda row: row.pop("turns"), "`turns`"),
        (lambda row: row.update(surprise=1), "`surprise`"),
        (lambda row: row.update(rollout_key=None), "rollout_key: .*None"),
        (lambda row: row.update(sample_index="2"), "sample_index: .*'2'"),
        (lambda row: row.update(stop_reason="gone"), "stop_reason: .*'answered', .*'gone'"),
        (lambda row: row.update(messages="hello"), "messages: .*'hello'"),
        (lambda row: row.update(messages=[]), r"messages: .*1 or more.*\[\]"),
        (lambda row: row["messages"].append("hi"), r"messages\[4\]: .*'hi'"),
        (lambda row: row["messages"][0].update(role="me"), r"messages\[0\]\.role: .*'system', .*'me'"),
        (lambda row: row["messages"][0].update(content=5), r"messages\[0\]\.content: .*5"),
        (lambda row: row["messages"][1].update(tool_calls="no"), r"messages\[1\]\.tool_calls: .*'no'"),
        (lambda row: row.update(tools=["f"]), r"tools\[0\]: .*'f'"),
        (lambda row: row["tools"][0].pop("function"), r"`tools\[0\]\.function`"),
        (lambda row: row["turns"][0].update(usage=None), r"turns\[0\]\.usage: .*None"),
        (lambda row: row["turns"][0]["usage"].update(prompt_tokens="3"), r"usage\.prompt_tokens: .*'3'"),
        (lambda row: row["turns"][1].update(cost_usd="free"), r"turns\[1\]\.cost_usd: .*'free'"),
        (lambda row: row.update(error="boom"), "error: .*'boom'"),
        (lambda row: row.update(model=["x" * 99]), r"model: .*'xxx.*x\.\.\.$"),
    ],
)  # fmt: skip
def test_a_malformed_row_is_reported_by_key_value_seen_and_value_expected(change: Change, problem: str) -> None:
    with pytest.raises(RowProblem, match=problem):
        parse_trajectory(changed(change))


def test_malformed_rows_and_those_of_other_prompts_are_counted_and_the_rest_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    write_jsonl(path, [ROW, {**ROW, "prompt_id": "another"}, {"messages": []}])
    with path.open("ab") as file:
        file.write(b"\n[1]\n" + orjson.dumps(ROW)[:-20])
    source = TrajectoryFile(path, {"p"})
    assert list(source) == [TRAJECTORY]
    assert source.num_unmatched == 1
    places = [problem.split(": ")[0] for problem in source.problems]
    assert places == [f"{path}, line {number}" for number in (3, 5, 6)]
    assert "cut off" in source.problems[-1]
    source.check(0.6)
    with pytest.raises(InputError, match=r"(?s)3 of 5 .*runtime\.failure_budget.*line 3: .*line 6"):
        source.check(0.5)


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        ([], r"t\.jsonl is empty"),
        ([{**ROW, "prompt_id": "x"}], "1 belong to others and 0 are malformed"),
        ([{}], "1 of 1 "),
    ],
)
def test_a_file_without_a_row_to_use_is_refused(tmp_path: Path, rows: list[Any], problem: str) -> None:
    path = tmp_path / "t.jsonl"
    write_jsonl(path, rows)
    source = TrajectoryFile(path, {"p"})
    assert list(source) == []
    with pytest.raises(InputError, match=problem):
        source.check(1.0)
