from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stillhouse.types import JsonObject
from tests.stillhouse.interop.result import Result

Write = Callable[..., Path]
META = {"id": "0199-aa", "cwd": "/home/ada", "cli_version": "0.142.0", "base_instructions": {"text": "You are Codex."}}


def line(kind: str, payload: JsonObject) -> JsonObject:
    return {"timestamp": "2026-03-01T10:00:00.000Z", "type": kind, "payload": payload}


def item(kind: str, **payload: Any) -> JsonObject:
    return line("response_item", {"type": kind, **payload})


def said(role: str, text: str) -> JsonObject:
    kind = "output_text" if role == "assistant" else "input_text"
    return item("message", role=role, content=[{"type": kind, "text": text}])


def session(meta: JsonObject = META) -> list[JsonObject]:
    """A question, reasoning with two parallel calls, their results, an answer."""
    return [
        line("session_meta", meta),
        said("developer", "Sandbox: read-only."),
        said("user", "<environment_context>\n  <cwd>/home/ada</cwd>\n</environment_context>"),
        said("user", "What is in the folder?"),
        line("event_msg", {"type": "user_message", "message": "What is in the folder?"}),
        line("turn_context", {"cwd": "/home/ada", "model": "gpt-5.4"}),
        item("reasoning", summary=[{"type": "summary_text", "text": "Look."}], content=None, encrypted_content="gAAA"),
        said("assistant", "I look."),
        item("function_call", name="shell", arguments='{"command":["ls"]}', call_id="call_1"),
        item("custom_tool_call", name="apply_patch", input="*** Begin Patch", call_id="call_2", status="completed"),
        item("function_call_output", call_id="call_1", output="a.txt"),
        item("custom_tool_call_output", call_id="call_2", output=[{"type": "input_text", "text": "Done"}]),
        line("event_msg", {"type": "token_count", "info": None}),
        said("assistant", "One file."),
    ]


@pytest.fixture
def read(tmp_path: Path, write: Write) -> Callable[..., Result]:
    return lambda *lines: Result(write(tmp_path / "2026" / "rollout-1.jsonl", *lines))


def spoken(trajectory: Any) -> list[tuple[str, str]]:
    return [(message["role"], message["content"] or "") for message in trajectory.messages]


def test_a_session_is_one_trajectory_with_its_instructions_as_the_system_message(read: Callable[..., Result]) -> None:
    told = read(*session())
    assert (told.report.form, told.report.rows) == ("codex", 1)
    trajectory = told.trajectory
    system, asked, turn, listed, patched, answer = trajectory.messages
    assert system == {"role": "system", "content": "You are Codex.\n\nSandbox: read-only."}
    assert (asked["role"], asked["content"].endswith("</environment_context>\n\nWhat is in the folder?")) == (
        "user",
        True,
    )
    assert (turn["reasoning_content"], turn["content"]) == ("Look.", "I look.")
    assert [call["function"]["arguments"] for call in turn["tool_calls"]] == [
        '{"command":["ls"]}',
        '{"input":"*** Begin Patch"}',
    ]
    assert (listed["content"], patched["content"], answer["content"]) == ("a.txt", "Done", "One file.")
    assert trajectory.model == "gpt-5.4"
    assert told.listed("tools") == ["shell", "apply_patch"]
    spans = told.beside.metadata["source_spans"]
    assert [place.partition(".jsonl")[2] for place in spans] == [", line 7", ", line 14"]


def test_a_shell_call_and_a_search_of_the_provider(read: Callable[..., Result]) -> None:
    action = {"type": "exec", "command": ["ls"]}
    lines = [
        line("session_meta", {"id": "1", "instructions": None}),
        said("user", "Look"),
        item("local_shell_call", call_id="call_1", status="completed", action=action),
        item("function_call_output", call_id="call_1", output="a.txt"),
        item("web_search_call", status="completed", action={"type": "search", "query": "x"}),
        said("assistant", "Done."),
    ]
    told = read(*lines)
    _, turn, result, answer = told.trajectory.messages
    assert turn["tool_calls"][0]["function"]["arguments"] == '{"type":"exec","command":["ls"]}'
    assert (result["content"], answer["content"]) == ("a.txt", "Done.")
    assert "web_search_call" in [row["key"] for row in told.unmapped]


def test_a_compaction_begins_a_history_whose_kept_turns_are_not_learnt_again(read: Callable[..., Result]) -> None:
    kept = [said("user", "Summary: one file.")["payload"], said("assistant", "One file.")["payload"]]
    more = [said("user", "And now?"), said("assistant", "Nothing new.")]
    told = read(*session(), line("compacted", {"message": "Summary", "replacement_history": kept}), *more)
    first, second = told.trajectories
    assert (len(first.turns), len(second.turns)) == (2, 1)
    assert spoken(second) == [
        ("system", "You are Codex."),
        ("user", "Summary: one file."),
        ("assistant", "One file."),
        ("user", "And now?"),
        ("assistant", "Nothing new."),
    ]


def test_a_compaction_of_older_versions_is_its_summary(read: Callable[..., Result]) -> None:
    more = [said("user", "And now?"), said("assistant", "Nothing new.")]
    _, second = read(*session(), line("compacted", {"message": "Summary: one file."}), *more).trajectories
    assert spoken(second)[1] == ("user", "Summary: one file.\n\nAnd now?")


def test_an_aborted_turn_is_not_learnt(read: Callable[..., Result]) -> None:
    lines = [
        *session(),
        said("user", "Delete it"),
        item("function_call", name="shell", arguments="{}", call_id="call_9"),
        item("function_call_output", call_id="call_9", output="aborted by user after 2.1s"),
        said("user", "<turn_aborted>\nThe user interrupted.\n</turn_aborted>"),
        line("event_msg", {"type": "turn_aborted", "reason": "interrupted"}),
        said("user", "Keep it"),
        said("assistant", "Kept."),
    ]
    told = read(*lines)
    first, second = told.trajectories
    assert (spoken(first)[-1][1], len(first.turns)) == ("One file.", 2)
    assert (spoken(second)[-1][1], len(second.turns)) == ("Kept.", 1)
    assert "a turn that was interrupted: context, not learnt" in [row["reason"] for row in told.unmapped]


def test_a_turn_aborted_before_it_said_anything_leaves_the_last_one_learnt(read: Callable[..., Result]) -> None:
    told = read(*session(), said("user", "Now"), line("event_msg", {"type": "turn_aborted", "reason": "interrupted"}))
    assert len(told.trajectory.turns) == 2


def test_a_call_without_an_output_ends_the_trajectory_before_its_turn(read: Callable[..., Result]) -> None:
    told = read(*session(), said("user", "Go"), item("function_call", name="shell", arguments="{}", call_id="call_9"))
    assert spoken(told.trajectory)[-1][1] == "One file."


def test_a_fork_learns_only_what_is_new(tmp_path: Path, write: Write) -> None:
    write(tmp_path / "sessions" / "rollout-1.jsonl", *session())
    forked = {**META, "id": "0199-bb", "forked_from_id": "0199-aa"}
    more = [said("user", "And now?"), said("assistant", "Nothing new.")]
    write(tmp_path / "sessions" / "rollout-2.jsonl", *session(forked), *more)
    first, second = Result(tmp_path / "sessions", output=tmp_path / "out").trajectories
    assert (len(first.turns), len(second.turns)) == (2, 1)
