"""Data files and logs of other trainers, in the forms that their own code writes."""

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from stillhouse.interop import convert
from stillhouse.interop.export.chat_lines import sharegpt_line
from stillhouse.store.records import read_jsonl, read_trajectories
from stillhouse.types import JsonObject
from tests.stillhouse.interop.result import Result

Write = Callable[..., Path]
USER = {"role": "user", "content": "2 + 2?"}
FOUR = {"role": "assistant", "content": "4"}
CALL = {"name": "add", "arguments": '{"a":2,"b":2}'}
SCHEMA = {"name": "add", "description": "Adds.", "parameters": {"type": "object", "properties": {}}}


def test_alpacas_rows_without_an_output_are_prompts_when_the_form_is_named(tmp_path: Path, write: Write) -> None:
    row = {"instruction": "And 3?", "system": "Brief.", "history": [["2 + 2?", "4"]]}
    report = convert(write(tmp_path / "rows.jsonl", row), tmp_path / "out", "alpaca")
    (prompt,) = read_jsonl(tmp_path / "out/prompts.jsonl")
    assert [message["content"] for message in prompt["messages"]] == ["Brief.", "2 + 2?", "4", "And 3?"]
    assert (report.trajectories, report.num_unmapped) == (0, 0)


@pytest.mark.parametrize(
    ("row", "messages"),
    [
        ({"system": "s", "conversations": [{"from": "human", "value": "q"}, {"from": speaker, "value": "a"}]}, "sqa")
        for speaker in ("gpt", "chatgpt", "bing", "bard", "ai", "model", "assistant")
    ]
    + [
        ({"prompt": "q", "completion": "a"}, "qa"),
        ({"prompt": [{"role": "user", "content": "q"}], "completion": [FOUR]}, "q4"),
        ({"instruction": "q", "input": "", "output": "a", "system": "s", "history": [["q", "4"]]}, "sq4qa"),
        ({"instruction": "i", "input": "j", "output": "a"}, ["i\nj", "a"]),
        ({"conversation": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]}, "qa"),
        ({"conversations": [{"role": "human", "content": "q"}, {"role": "ai", "content": "a"}]}, "qa"),
        ({"conversations": json.dumps([{"from": "user", "value": "q"}, {"from": "gpt", "value": "a"}])}, "qa"),
        ({"system": "s", "messages": [{"role": "user", "content": "q"}, {"role": "model", "content": "a"}]}, "sqa"),
        ({"messages": [{"role": "developer", "content": "s"}, {"role": "user", "content": "q"}, FOUR]}, "sq4"),
        ({"system": "s", "messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "q"}]}, "sq"),
        ({"instruction": "q", "input": None, "output": "a"}, "qa"),
        ({"instruction": "", "input": "q", "output": "a"}, "qa"),
        ({"instruction": "q", "input": "", "output": ""}, "q"),
        ({"instruction": "q", "output": None, "system": "s"}, "sq"),
    ],
)
def test_each_public_spelling_of_a_conversation_is_read(
    tmp_path: Path, write: Write, row: JsonObject, messages: Sequence[str]
) -> None:
    source = write(tmp_path / "rows.jsonl", row)
    convert(source, tmp_path / "out")
    (prompt,) = read_jsonl(tmp_path / "out" / "prompts.jsonl")
    answered = tmp_path / "out" / "trajectories.jsonl"
    said = next(iter(read_trajectories(answered))).messages if answered.exists() else prompt["messages"]
    roles = {"s": "system", "q": "user", "a": "assistant", "4": "assistant"}
    assert [message["content"] for message in said] == list(messages)
    assert all(message["role"] == roles.get(message["content"], message["role"]) for message in said)


def test_calls_and_results_have_several_names_in_sharegpt(tmp_path: Path, write: Write) -> None:
    call = {"name": "get", "arguments": '{"city": "Oslo"}'}
    turns = [("human", "warm?"), ("tool_call", json.dumps(call)), ("tool_response", "3"), ("gpt", "3 degrees")]
    row = {"conversations": [{"from": speaker, "value": value} for speaker, value in turns]}
    trajectory = Result(write(tmp_path / "rows.jsonl", row)).trajectory
    assert [message["role"] for message in trajectory.messages] == ["user", "assistant", "tool", "assistant"]
    assert trajectory.messages[1]["tool_calls"][0]["function"] == call
    assert trajectory.messages[2]["tool_call_id"] == trajectory.messages[1]["tool_calls"][0]["id"]


def test_a_turn_of_sharegpt_that_is_not_learnt_is_context(tmp_path: Path, write: Write) -> None:
    turns = [("human", "q", {}), ("gpt", "a", {"loss": False}), ("human", "r", {}), ("gpt", "b", {"weight": 1})]
    row = {"conversations": [{"from": speaker, "value": value, **keys} for speaker, value, keys in turns]}
    result = Result(write(tmp_path / "rows.jsonl", row))
    assert [message["content"] for message in result.loaded.prompts[0].messages] == ["q", "a", "r"]
    assert result.trajectory.messages[-1] == {"role": "assistant", "content": "b"}


GOOD = {"conversations": [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "yo"}]}


@pytest.mark.parametrize(
    ("odd", "problem"),
    [
        ({"conversations": None}, "saw {'conversations': None}"),
        ({"conversations": []}, r"saw {'conversations': \[\]}"),
        ({"conversations": [None]}, "conversations"),
        ({"conversations": [GOOD["conversations"][0], None]}, r"conversations\[1\] to be an object, saw NoneType"),
        ({"conversations": [{"from": "human", "value": ["a"]}]}, r"conversations\[0\].*`value`, a text; saw .*\['a'\]"),
        ({"conversations": [{"from": "human", "value": 5}]}, r"conversations\[0\].*`value`, a text; saw .*5"),
        ({"conversations": [{"from": "gpt", "value": "I start"}]}, "system or user"),
        ({"conversations": [{"from": "narrator", "value": "x"}]}, r"conversations\[0\] to have `from`"),
        (
            {"conversations": [GOOD["conversations"][0], {"from": "function_call", "value": "{"}]},
            r"messages\[1\] to be JSON",
        ),
        ({"conversations": "[{"}, "conversations .*JSON"),
        ({"topic": "x"}, "conversations.*{'topic': 'x'}"),
        ({"messages": [{"role": "user", "content": {"x": 1}}]}, r"messages\[0\].content to be text"),
        ({"instruction": "i", "output": ["a", "b"]}, r"output .*list \['a', 'b'\]"),
        ({"instruction": 5, "output": "a"}, "instruction .*int 5"),
        ({"instruction": "i", "output": "a", "history": [["a", "b"], 3]}, "history"),
        ({**GOOD, "system": ["a"]}, r"system .*list \['a'\]"),
        (
            {"messages": [{"role": "system", "content": "a"}, USER], "system": "b"},
            "str 'b' beside messages",
        ),
        ({"messages": [USER, {"role": "assistant", "function_call": "f"}]}, r"messages\[1\].tool_calls"),
        ({"messages": [USER, FOUR], "tools": [3]}, "tools"),
        ({"messages": [USER, FOUR], "functions": 3}, "tools"),
        ({"prompt": None, "completion": "a"}, "prompt"),
        ({"prompt": "q", "completion": {"role": "assistant"}}, "completion"),
    ],
)
@pytest.mark.parametrize("is_first", [True, False])
def test_one_odd_row_is_named_with_its_line_and_the_others_are_converted(
    tmp_path: Path, write: Write, odd: JsonObject, problem: str, is_first: bool
) -> None:
    source = write(tmp_path / "rows.jsonl", *([odd, GOOD] if is_first else [GOOD, odd]))
    report = convert(source, tmp_path / "out")
    assert (report.rows, report.rows_left_out, report.trajectories) == (2, 1, 1)
    (told,) = read_jsonl(tmp_path / "out" / "unmapped.jsonl")
    assert told["place"] == f"{source}, line {1 if is_first else 2}"
    assert re.search(problem, told["value"])


def test_rows_of_another_form_in_one_file_are_read_in_that_unless_a_form_is_named(tmp_path: Path, write: Write) -> None:
    source = write(tmp_path / "rows.jsonl", GOOD, {"prompt": "q", "completion": "a"}, {"messages": [USER, FOUR]})
    assert convert(source, tmp_path / "out").trajectories == 3
    assert convert(source, tmp_path / "out", "sharegpt").rows_left_out == 2


def test_what_an_export_to_sharegpt_wrote_comes_back(tmp_path: Path, write: Write) -> None:
    calls = [{"id": name, "type": "function", "function": CALL} for name in "cd"]
    messages: list[Any] = [
        USER,
        {"role": "assistant", "content": None, "tool_calls": calls},
        {"role": "tool", "tool_call_id": "c", "content": "4"},
        {"role": "tool", "tool_call_id": "d", "content": "four"},
        FOUR,
    ]
    line = sharegpt_line({"messages": messages, "tools": [{"type": "function", "function": SCHEMA}]})
    trajectory = Result(write(tmp_path / "rows.jsonl", line)).trajectory
    assert [message["content"] for message in trajectory.messages] == ["2 + 2?", None, "4", "four", "4"]
    written = trajectory.messages[1]["tool_calls"]
    assert [call["function"] for call in written] == [CALL, CALL]
    assert [message["tool_call_id"] for message in trajectory.messages[2:4]] == [call["id"] for call in written]
    assert trajectory.tools == [{"type": "function", "function": SCHEMA}]


def test_samples_of_an_inspect_log_are_trajectories_with_answers_and_scores(tmp_path: Path) -> None:
    call = {"id": "c", "function": "add", "arguments": {"a": 2, "b": 2}, "type": "function"}
    thought = [{"type": "reasoning", "reasoning": "hm"}, {"type": "text", "text": "4"}]
    sample = {
        "id": "a", "epoch": 1, "input": "2 + 2?", "target": "4", "metadata": {"level": 1},
        "messages": [
            {"id": "1", "role": "user", "content": "2 + 2?", "source": "input"},
            {"id": "2", "role": "assistant", "content": "", "tool_calls": [call], "model": "m"},
            {"id": "3", "role": "tool", "content": "4", "tool_call_id": "c", "function": "add"},
            {"id": "4", "role": "assistant", "content": thought, "model": "m"},
        ],
        "output": {"model": "m", "choices": [{"stop_reason": "stop"}], "usage": {"input_tokens": 9}},
        "scores": {"match": {"value": "C"}},
        "events": [{"event": "model", "tools": [SCHEMA]}],
    }  # fmt: skip
    path = tmp_path / "log.json"
    path.write_text(json.dumps({"version": 2, "status": "success", "eval": {"task": "sums"}, "samples": [sample]}))
    result = Result(path)
    trajectory = result.trajectory
    assert (result.report.form, trajectory.model) == ("inspect", "m")
    assert trajectory.tools == [{"type": "function", "function": SCHEMA}]
    assert (trajectory.messages[-1]["content"], trajectory.messages[-1]["reasoning_content"]) == ("4", "hm")
    assert (result.beside.tag, result.beside.expected_answer) == ("sums", "4")
    assert result.beside.metadata == {"level": 1, "inspect_id": "a", "inspect_scores": {"match": "C"}}


def test_a_trace_of_verifiers_is_read_along_its_last_branch(tmp_path: Path, write: Write) -> None:
    call = {"id": "c", "name": "add", "arguments": '{"a":2,"b":2}'}
    nodes = [
        {"parent": None, "message": USER, "tools": [{"type": "function", **SCHEMA}]},
        {"parent": 0, "message": {"role": "assistant", "content": "5"}, "sampled": True, "token_ids": [1]},
        {"parent": 0, "message": {"role": "assistant", "content": None, "tool_calls": [call]}, "sampled": True},
        {"parent": 2, "message": {"role": "tool", "tool_call_id": "c", "content": "4"}},
        {"parent": 3, "message": FOUR, "sampled": True},
    ]
    trace = {
        "version": 1,
        "task": {"type": "Sums", "data": {"id": "s1", "prompt": "2 + 2?", "answer": "4"}},
        "nodes": nodes,
        "calls": [{"model": "m", "usage": {"prompt_tokens": 5, "completion_tokens": 2}}],
        "rewards": {"right": {"score": 1.0}},
        "is_completed": True,
        "ok": True,
    }
    result = Result(write(tmp_path / "traces.jsonl", trace))
    trajectory = result.trajectory
    assert (result.report.form, trajectory.model) == ("verifiers", "m")
    assert [message["role"] for message in trajectory.messages] == ["user", "assistant", "tool", "assistant"]
    assert (result.beside.tag, result.beside.expected_answer) == ("Sums", "4")
    assert result.beside.metadata == {"verifiers_rewards": {"right": 1.0}, "id": "s1"}
    assert result.listed("nodes") == [1]
    assert len(result.listed("nodes.token_ids")) == 1
