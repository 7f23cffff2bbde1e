import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stillhouse.errors import InputError
from tests.stillhouse.interop.result import Result

Write = Callable[..., Path]
USER = {"role": "user", "content": "What is 2 + 2?"}
FOUR = {"role": "assistant", "content": "4"}
ADD = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}


def test_rows_of_rnow_that_end_with_the_user_are_prompts(tmp_path: Path, write: Write) -> None:
    row = {
        "messages": [USER],
        "rewards": ["accuracy"],
        "tools": ["add"],
        "docker": "python:3.11-slim",
        "docker_env": {"HF_TOKEN": "hf_very_secret"},
        "metadata": {"answer": "4"},
        "variables": {"unit": "m"},
    }
    result = Result(write(tmp_path / "train.jsonl", row))
    assert result.report.form == "rnow-jsonl"
    assert (result.loaded.prompts[0].tools, result.beside.expected_answer) == (["add"], "4")
    assert result.beside.metadata == {"rewards": ["accuracy"], "docker": "python:3.11-slim", "variables": {"unit": "m"}}
    assert result.trajectories == []
    assert result.listed("docker_env") == [["HF_TOKEN"]]
    assert result.listed("docker") == ["python:3.11-slim"]
    assert result.listed("rewards") == result.listed("variables") == []
    assert all("secret" not in file.read_text() for file in (tmp_path / "out").iterdir())


def test_rows_that_its_script_wrote_name_teacher_and_turns(tmp_path: Path, write: Write) -> None:
    calls = [{"id": "call_1", "type": "function", "function": {"name": "browse", "arguments": '{"url": "u"}'}}]
    said = [
        {"role": "assistant", "content": "", "tool_calls": calls},
        {"role": "tool", "tool_call_id": "call_1", "content": '{"error": "no route"}'},
        FOUR,
    ]
    about = {"teacher": "openai/gpt-4o-mini", "turns": 2, "expected_answer": "4"}
    result = Result(
        write(tmp_path / "train.jsonl", {"messages": [USER, *said], "metadata": about, "tools": ["browse"]})
    )
    trajectory = result.trajectory
    assert trajectory.model == "openai/gpt-4o-mini"
    assert [turn.num_tool_errors for turn in trajectory.turns] == [1, 0]
    assert result.beside.expected_answer == "4"
    assert result.beside.metadata == {}
    assert result.listed("tools") == ["browse"]


def test_rows_of_roll_keep_answers_and_say_how_they_are_verified(tmp_path: Path, write: Write) -> None:
    messages = [{"role": "system", "content": "你是一个数学助手。"}, {"role": "user", "content": "3x + 5 = 14"}]
    row = {
        "id": "0",
        "source": "math_dataset",
        "difficulty": 0,
        "prompt": "3x + 5 = 14",
        "messages": json.dumps(messages),
        "tag": "math_rule",
        "ground_truth": "3",
    }
    code = {"id": "1", "prompt": "Write f", "tag": "KodCode", "test_cases": '[{"assert_code": "assert f() == 1"}]'}
    judged = {"id": "2", "prompt": "Write a poem", "tag": "llm_judge", "ground_truth": "a poem"}
    result = Result(write(tmp_path / "roll.jsonl", row, code, judged, {"messages": "[", "tag": "x"}))
    assert result.report.form == "roll-jsonl"
    math, python, judge = (result.loaded.metadata[prompt.id] for prompt in result.loaded.prompts)
    assert result.loaded.prompts[0].messages == messages
    assert (math.expected_answer, math.tag, math.verifier) == ("3", "math_rule", "math")
    assert math.metadata == {"id": "0", "source": "math_dataset", "difficulty": 0}
    assert (python.verifier, python.metadata["test_cases"]) == ("python", [{"assert_code": "assert f() == 1"}])
    assert judge.verifier == "judge"
    assert result.report.rows_left_out == 1
    (told,) = [row for row in result.unmapped if row["reason"] == "the row is malformed"]
    assert told["place"].endswith("roll.jsonl, line 4")
    assert "expected messages to be JSON" in told["value"]


@pytest.mark.parametrize(
    ("columns", "verifier"),
    [
        ({"domain": "math_rule", "tag": "aime2024"}, "math"),
        ({"domain": "code_sandbox", "tag": "KodCode"}, "python"),
        ({"domain": "llm_judge", "tag": "RLVR"}, "judge"),
        ({"domain": "crossthinkqa", "tag": "crossthinkqa"}, "choice"),
        ({"tag": "deepmath_103k"}, "normalised"),
    ],
)
def test_the_domain_of_a_roll_row_names_its_verifier_and_empty_columns_are_left_out(
    tmp_path: Path, write: Write, columns: dict[str, str], verifier: str
) -> None:
    empty = {"case_type": "", "test_case_function": "", "test_cases": ""}
    row = {"id": "1", "prompt": "1 + 1?", "messages": '[{"role": "user", "content": "1 + 1?"}]', "ground_truth": "2"}
    result = Result(write(tmp_path / "roll.jsonl", {**row, **empty, **columns}))
    (metadata,) = result.loaded.metadata.values()
    assert (metadata.expected_answer, metadata.verifier) == ("2", verifier)
    assert not metadata.metadata.keys() & empty.keys()


def test_what_a_roll_row_needs_and_nothing_here_gives_is_listed(tmp_path: Path, write: Write) -> None:
    row = {"prompt": "Mend it", "task_name": "sympy", "sandbox_image": "swebench:sympy", "domain": "swe"}
    result = Result(write(tmp_path / "swe.jsonl", row))
    assert result.listed("sandbox_image") == ["swebench:sympy"]
    assert result.listed("domain") == ["swe"]


def test_rows_of_text_alone_are_refused_by_their_column(tmp_path: Path, write: Write) -> None:
    with pytest.raises(InputError, match="pretraining"):
        Result(write(tmp_path / "train.jsonl", {"text": "Once upon a time"}))


def test_rows_of_openai_bring_their_schemas(tmp_path: Path, write: Write) -> None:
    call = {"name": "add", "arguments": '{"a": 2, "b": 2}'}
    calls = [{"id": "c1", "type": "function", "function": call}, {"id": "c2", "type": "function", "function": call}]
    said = [
        {"role": "assistant", "tool_calls": calls},
        {"role": "tool", "tool_call_id": "c1", "content": "4"},
        {"role": "tool", "tool_call_id": "c2", "content": "4"},
        FOUR,
    ]
    row = {
        "messages": [{"role": "developer", "content": "Add."}, USER, *said],
        "tools": [ADD],
        "parallel_tool_calls": True,
    }
    result = Result(write(tmp_path / "chat.jsonl", row))
    assert result.report.form == "openai"
    (trajectory,) = result.trajectories
    assert trajectory.tools == [ADD]
    assert result.loaded.prompts[0].tools == ["add"]
    assert [message["role"] for message in result.loaded.prompts[0].messages] == ["system", "user"]
    assert trajectory.messages[2:] == said
    assert result.listed("parallel_tool_calls") == [True]


def test_the_deprecated_functions_of_openai_are_tools(tmp_path: Path, write: Write) -> None:
    said = [
        {"role": "assistant", "content": None, "function_call": {"name": "add", "arguments": "{}"}},
        {"role": "function", "name": "add", "content": "4"},
        FOUR,
    ]
    result = Result(write(tmp_path / "chat.jsonl", {"messages": [USER, *said], "functions": [ADD["function"]]}))
    (trajectory,) = result.trajectories
    (call,) = trajectory.messages[1]["tool_calls"]
    assert call == {"id": "call_0", "type": "function", "function": {"name": "add", "arguments": "{}"}}
    assert trajectory.messages[2]["tool_call_id"] == "call_0"
    assert trajectory.tools == [ADD]


OTHER = {"role": "user", "content": "And 3 + 3?"}
SIX = {"role": "assistant", "content": "6"}


@pytest.mark.parametrize(
    ("weights", "num_prompt", "num_turns"), [((None, None), 1, 2), ((1, 1), 1, 2), ((0, 1), 3, 1), ((0, None), 3, 1)]
)
def test_turns_of_weight_0_are_context(
    tmp_path: Path, write: Write, weights: tuple[int | None, int | None], num_prompt: int, num_turns: int
) -> None:
    said = [
        message if weight is None else {**message, "weight": weight}
        for message, weight in zip((FOUR, SIX), weights, strict=True)
    ]
    result = Result(write(tmp_path / "chat.jsonl", {"messages": [USER, said[0], OTHER, said[1]]}))
    assert len(result.loaded.prompts[0].messages) == num_prompt
    (trajectory,) = result.trajectories
    assert len(trajectory.turns) == num_turns
    assert trajectory.messages == [USER, FOUR, OTHER, SIX]


def test_turns_before_one_of_weight_0_are_listed(tmp_path: Path, write: Write) -> None:
    result = Result(write(tmp_path / "chat.jsonl", {"messages": [USER, FOUR, OTHER, {**SIX, "weight": 0}, USER, FOUR]}))
    (trajectory,) = result.trajectories
    assert len(trajectory.turns) == 1
    assert result.listed("messages") == [[FOUR]]


def test_one_torn_file_of_many_costs_itself_alone(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    for number in range(3):
        pq.write_table(pa.Table.from_pylist([{"messages": [USER, FOUR]}]), folder / f"train-{number}.parquet")
    whole = (folder / "train-0.parquet").read_bytes()
    (folder / "train-0.parquet").write_bytes(whole[:-20])
    result = Result(folder)
    assert (result.report.files, result.report.rows, result.report.rows_left_out) == (3, 3, 1)
    (told,) = [row for row in result.unmapped if row["reason"] == "the row is malformed"]
    assert told["place"].endswith("train-0.parquet")
    assert "cannot be read as Parquet" in told["value"]


def test_a_row_without_a_turn_to_train_on_is_left_out(tmp_path: Path, write: Write) -> None:
    excluded = {"messages": [USER, FOUR, OTHER, {**SIX, "weight": 0}]}
    result = Result(write(tmp_path / "chat.jsonl", {"messages": [USER, FOUR]}, excluded))
    assert (result.report.rows, result.report.rows_left_out, len(result.trajectories)) == (2, 1, 1)
    assert any("nothing to train on" in row["reason"] for row in result.unmapped)


@pytest.mark.parametrize("ending", [".jsonl", ".json", ".parquet", ".arrow"])
def test_rows_are_read_from_every_kind_of_file(tmp_path: Path, write: Write, ending: str) -> None:
    source = tmp_path / f"train{ending}"
    row = {"messages": [USER, FOUR]}
    table = pa.Table.from_pylist([row])
    if ending == ".jsonl":
        write(source, row)
    elif ending == ".json":
        source.write_text(json.dumps([row]))
    elif ending == ".parquet":
        pq.write_table(table, source)
    else:
        with pa.OSFile(str(source), "wb") as file, pa.ipc.new_stream(file, table.schema) as stream:
            stream.write_table(table)
    (trajectory,) = Result(source).trajectories
    assert trajectory.messages == [USER, FOUR]


def test_torn_lines_are_told_of_with_their_number(tmp_path: Path, write: Write) -> None:
    good = json.dumps({"messages": [USER, FOUR]})
    result = Result(write(tmp_path / "chat.jsonl", f"{good}\n\n[1]\n{good[:30]}\n{good}\n{good[:40]}"))
    assert (result.report.rows, result.report.rows_left_out, len(result.trajectories)) == (5, 3, 2)
    places = [row["place"].partition(", ")[2] for row in result.unmapped]
    assert places == ["line 3", "line 4", "line 6"]
    assert "may be cut off" in result.unmapped[2]["value"]


def test_every_row_is_written_or_listed(tmp_path: Path, write: Write) -> None:
    rows: list[Any] = [{"messages": [USER, FOUR]}, {"messages": []}, {"messages": [{"role": "user"}]}, {"tools": [1]}]
    rows += [{"messages": [USER], "metadata": 3}, {"messages": [USER], "tools": [{"title": "x"}]}, {"messages": [[]]}]
    rows += [{"messages": [USER, {"role": "assistant", "tool_calls": [{"id": "a", "function": {"name": 1}}]}]}]
    result = Result(write(tmp_path / "chat.jsonl", *rows), "openai")
    assert (result.report.rows, result.report.rows_left_out) == (len(rows), len(rows) - 1)
    left_out = {row["place"] for row in result.unmapped}
    assert len(left_out) == len(rows) - 1
