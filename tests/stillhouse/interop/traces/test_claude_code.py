import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stillhouse.errors import ConfigError
from stillhouse.types import JsonObject
from tests.stillhouse.interop.result import Result
from tests.stillhouse.interop.traces.claude_lines import boundary, call, event, result, session, text

Write = Callable[..., Path]
TOOLS = '''from stillhouse.tools import tool


@tool
def calculator(expression: str) -> str:
    """Calculate.

    Args:
        expression: in whole numbers.
    """
    return str(eval(expression))
'''


@pytest.fixture
def read(tmp_path: Path, write: Write) -> Callable[..., Result]:
    """Converts one session file of these lines."""
    return lambda *lines, **options: Result(write(tmp_path / "project" / "5c2f.jsonl", *lines), **options)


def spoken(trajectory: Any) -> list[tuple[str, str]]:
    return [(message["role"], message["content"] or "") for message in trajectory.messages]


def reasons(read: Result) -> list[str]:
    return [row["reason"] for row in read.unmapped]


def test_a_session_is_one_trajectory_with_parallel_calls_in_one_turn(
    tmp_path: Path, read: Callable[..., Result]
) -> None:
    tools = tmp_path / "tools.py"
    tools.write_text(TOOLS)
    told = read(*session(), tools_file=tools)
    assert (told.report.form, told.report.rows, told.report.rows_left_out) == ("claude-code", 1, 0)
    trajectory = told.trajectory
    _, turn, first, second, answer = trajectory.messages
    assert [called["function"]["arguments"] for called in turn["tool_calls"]] == [
        '{"expression":"1 + 1"}',
        '{"expression":"1 * 4"}',
    ]
    assert (turn["content"], turn["reasoning_content"]) == ("I calculate.", "Two sums.")
    assert [(one["tool_call_id"], one["content"]) for one in (first, second)] == [("toolu_1", "2"), ("toolu_2", "4")]
    assert answer["content"] == "2 and 4."
    assert (trajectory.model, trajectory.stop_reason) == ("claude-opus-4-5", "answered")
    assert [schema["function"]["name"] for schema in trajectory.tools] == ["calculator"]
    spans = told.beside.metadata["source_spans"]
    assert [place.partition(".jsonl")[2] for place in spans] == [", line 3", ", line 9"]
    assert told.unmapped == []
    assert [row["value"] for row in read(*session()).unmapped] == ["calculator"], "without schemas, so told"


def test_what_stands_before_a_compaction_is_a_trajectory_and_its_summary_begins_the_next(
    read: Callable[..., Result],
) -> None:
    summary = "This session is being continued: the sums are 2 and 4."
    later = [
        boundary(9, 8),
        event(10, 9, "user", summary, isCompactSummary=True, isVisibleInTranscriptOnly=True),
        # Its parent may be a line from before the boundary, and lines from before may be written again.
        session()[1],
        event(11, 8, "user", "And 3 + 3?"),
        event(12, 11, "assistant", text("6.")),
    ]
    before, after = read(*session(), *later).trajectories
    assert spoken(before)[-1] == ("assistant", "2 and 4.")
    assert spoken(after) == [("user", f"{summary}\n\nAnd 3 + 3?"), ("assistant", "6.")]


def test_subagents_are_conversations_of_their_own(tmp_path: Path, write: Write) -> None:
    def side(number: int, parent: int | None, kind: str, content: Any) -> JsonObject:
        return event(number, parent, kind, content, isSidechain=True)

    inside = [side(20, None, "user", "Find it"), side(30, None, "user", "Look there")]
    inside += [side(21, 20, "assistant", text("Found.")), side(31, 30, "assistant", text("Nothing there."))]
    lines = session()
    write(tmp_path / "project" / "5c2f.jsonl", *lines[:6], *inside, *lines[6:])
    own = [
        event(40, None, "user", "Count", isSidechain=True, agentId="a7f"),
        event(41, 40, "assistant", text("Three.")),
    ]
    own[1] |= {"isSidechain": True, "agentId": "a7f"}
    write(tmp_path / "project" / "5c2f" / "subagents" / "agent-a7f.jsonl", *own)
    read = Result(tmp_path / "project", output=tmp_path / "out")
    assert sorted(spoken(one)[-1][1] for one in read.trajectories) == ["2 and 4.", "Found.", "Nothing there.", "Three."]
    agents = [beside.metadata.get("subagent") for beside in read.loaded.metadata.values()]
    assert sorted(map(str, agents)) == ["None", "True", "True", "a7f"]


def test_an_interrupted_turn_is_context_of_the_next_and_not_learnt(read: Callable[..., Result]) -> None:
    lines = [
        *session(),
        event(9, 8, "user", "Now 5 + 5"),
        event(10, 9, "assistant", text("Five and five is, let me")),
        event(11, 10, "user", text("[Request interrupted by user]")),
        event(12, 11, "user", "In short"),
        event(13, 12, "assistant", text("10.")),
    ]
    told = read(*lines)
    first, second = told.trajectories
    assert (len(first.turns), spoken(first)[-1][1]) == (2, "2 and 4.")
    assert (len(second.turns), spoken(second)[-1][1]) == (1, "10.")
    assert spoken(second)[-3:-1] == [
        ("assistant", "Five and five is, let me"),
        ("user", "[Request interrupted by user]\n\nIn short"),
    ]
    assert [reason for reason in reasons(told) if "interrupted" in reason] == [
        "a turn that was interrupted: context, not learnt"
    ]
    spans = [len(beside.metadata["source_spans"]) for beside in told.loaded.metadata.values()]
    assert spans == [2, 4], "one for each message of the assistant, those of the prompt too"


def test_an_interruption_before_the_next_turn_began_leaves_the_last_one_learnt(read: Callable[..., Result]) -> None:
    lines = [*session(), event(9, 8, "user", "Now 5 + 5"), event(10, 9, "user", text("[Request interrupted by user]"))]
    told = read(*lines)
    assert len(told.trajectory.turns) == 2
    assert not any("interrupted" in reason for reason in reasons(told))


def test_a_rejected_call_is_not_learnt(read: Callable[..., Result]) -> None:
    rejected = "The user doesn't want to proceed with this tool use."
    lines = [
        *session(),
        event(9, 8, "user", "Delete it"),
        event(10, 9, "assistant", call("toolu_9")),
        event(11, 10, "user", result("toolu_9", rejected, is_error=True)),
        event(12, 11, "user", text("[Request interrupted by user for tool use]")),
    ]
    told = read(*lines)
    assert spoken(told.trajectory)[-1][1] == "2 and 4."
    assert any("interrupted" in reason for reason in reasons(told))


def test_a_call_without_a_result_ends_the_trajectory_before_its_turn(read: Callable[..., Result]) -> None:
    told = read(*session(), event(9, 8, "user", "Go on"), event(10, 9, "assistant", call("toolu_9")))
    assert spoken(told.trajectory)[-1][1] == "2 and 4."
    assert any(reason.startswith("a call without a result") for reason in reasons(told))


def test_errors_of_the_api_and_images_are_left_out_and_counted(read: Callable[..., Result]) -> None:
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}}
    failed = event(2, 1, "assistant", text("API Error: 529 overloaded"), model="<synthetic>", isApiErrorMessage=True)
    lines = [
        event(1, None, "user", [*text("What is this?"), image]),
        failed,
        event(3, 2, "user", [image]),
        event(4, 3, "assistant", call("toolu_1")),
        event(5, 4, "user", result("toolu_1", [*text("4"), image])),
        event(6, 5, "assistant", text("A cat.")),
    ]
    told = read(*lines)
    assert spoken(told.trajectory) == [
        ("user", "What is this?\n\n[image]"),
        ("assistant", ""),
        ("tool", "4"),
        ("assistant", "A cat."),
    ]
    assert [row["key"] for row in told.unmapped].count("image") == 3
    assert any("error of the API" in reason for reason in reasons(told))


def test_a_failed_call_is_an_error_of_the_turn(read: Callable[..., Result]) -> None:
    lines = [
        event(1, None, "user", "2 / 0?"),
        event(2, 1, "assistant", call("toolu_1", "2 / 0")),
        event(3, 2, "user", result("toolu_1", "division by zero", is_error=True)),
        event(4, 3, "assistant", text("That is not defined.")),
    ]
    trajectory = read(*lines).trajectory
    assert trajectory.messages[2]["content"] == '{"error":"division by zero"}'
    assert [turn.num_tool_errors for turn in trajectory.turns] == [1, 0]


def test_the_last_branch_is_read_and_turns_of_others_are_counted(read: Callable[..., Result]) -> None:
    lines = [*session(), event(9, 8, "user", "Delete it"), event(10, 9, "assistant", text("Gone."))]
    lines += [event(11, 8, "user", "Keep it"), event(12, 11, "assistant", text("Kept."))]
    told = read(*lines)
    assert [said for _, said in spoken(told.trajectory)][-3:] == ["2 and 4.", "Keep it", "Kept."]
    assert [reason for reason in reasons(told) if "schema" not in reason] == [
        "a turn that the user went back from: left out"
    ]


def test_lines_that_grow_while_the_message_streams_are_one_message(read: Callable[..., Result]) -> None:
    lines = [
        event(1, None, "user", "2 + 2?"),
        event(2, 1, "assistant", text("It"), message_id="msg_a"),
        event(3, 2, "assistant", [*text("It is"), *call("toolu_1")], message_id="msg_a"),
        event(4, 3, "assistant", [*text("It is easy."), *call("toolu_1")], message_id="msg_a"),
        event(5, 4, "user", result("toolu_1")),
        event(6, 5, "assistant", text("4.")),
    ]
    _, turn, _, _ = read(*lines).trajectory.messages
    assert (turn["content"], len(turn["tool_calls"])) == ("It is easy.", 1)


def test_a_resumed_session_learns_only_what_is_new(tmp_path: Path, write: Write) -> None:
    write(tmp_path / "project" / "1.jsonl", *session())
    more = [event(9, 8, "user", "And 3 + 3?"), event(10, 9, "assistant", text("6."))]
    copied = [{**line, "sessionId": "77aa", "uuid": f"r{line.get('uuid')}"} for line in [*session()[1:], *more]]
    for line in copied:
        line["parentUuid"] = line["parentUuid"] and f"r{line['parentUuid']}"
    write(tmp_path / "project" / "2.jsonl", *copied)
    first, second = Result(tmp_path / "project", output=tmp_path / "out").trajectories
    assert (len(first.turns), len(second.turns), spoken(second)[-1][1]) == (2, 1, "6.")


def test_a_torn_line_costs_itself_and_a_missing_parent_nothing(read: Callable[..., Result]) -> None:
    lines = session()
    lines[3] = json.dumps(lines[3])[:80] + "\n"  # type: ignore[call-overload]
    told = read(*lines)
    assert (told.report.rows, told.report.rows_left_out) == (2, 1)
    assert spoken(told.trajectory)[-1][1] == "2 and 4."
    assert len(told.trajectory.messages[1]["tool_calls"]) == 2


def test_a_note_that_claude_code_adds_between_results_costs_none(read: Callable[..., Result]) -> None:
    lines = session()
    note = event(20, 6, "user", text("Base directory for this skill"), isMeta=True)
    told = read(*lines[:8], note, lines[8])
    assert [message["role"] for message in told.trajectory.messages].count("tool") == 2


def test_the_command_refuses_a_kind_of_private_data_that_it_does_not_know() -> None:
    from flows.verbs.data import convert

    with pytest.raises(ConfigError, match=r"--drop-private: expected some of secret, email.*saw 'emial'"):
        convert(Path("sessions"), Path("out"), drop_private="secret,emial")
