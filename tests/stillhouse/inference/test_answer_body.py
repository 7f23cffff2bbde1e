import json
from typing import Any

import pytest

from stillhouse.inference.answer_body import parse_body
from stillhouse.inference.failures import RequestFailed


def events(*rows: Any, done: bool = True) -> bytes:
    lines = [f"data: {json.dumps(row)}" for row in rows] + ["data: [DONE]"] * done
    return "\n\n".join([": keep-alive", *lines, ""]).encode()


def chunk(finish_reason: str | None = None, **delta: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}], "usage": None, "error": None}


def part(index: int, arguments: str, **rest: Any) -> dict[str, Any]:
    return {"index": index, **rest, "function": {"arguments": arguments, **({"name": "add"} if "id" in rest else {})}}


def message(*rows: Any) -> Any:
    return parse_body(events(*rows))["choices"][0]["message"]


def test_events_that_nobody_asked_for_are_joined() -> None:
    body = parse_body(
        events(
            chunk(role="assistant", content=None, reasoning_content="2 and "),
            chunk(role="assistant", reasoning_content="2", content=""),
            chunk(content="fo"),
            chunk(content="ur", token_ids=[4]),
            chunk("stop"),
            {"id": "x", "choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 5}},
        )
    )
    assert body["usage"] == {"prompt_tokens": 3, "completion_tokens": 5}
    assert body["choices"][0]["finish_reason"] == "stop"
    said = body["choices"][0]["message"]
    assert (said["role"], said["reasoning_content"], said["content"]) == ("assistant", "2 and 2", "four")


def test_calls_are_joined_by_index_and_id() -> None:
    calls = message(
        chunk(tool_calls=[part(0, "", id="a", type="function")]),
        chunk(tool_calls=[part(0, '{"a"')]),
        chunk(tool_calls=[{**part(0, ": 1}"), "id": ""}]),
        chunk(tool_calls=[part(1, "{}", id="b", type="function")]),
        # Gemini counts all as 0, and sends each whole.
        chunk(tool_calls=[part(0, "{ }", id="c", type="function")]),
        # A gateway that gives an index with the first piece alone.
        chunk(tool_calls=[part(3, "[", id="d", type="function")]),
        chunk("tool_calls", tool_calls=[{"id": "d", "function": {"arguments": "]"}}]),
    )["tool_calls"]
    assert [call["id"] for call in calls] == ["a", "b", "c", "d"]
    assert [call["function"] for call in calls] == [
        {"name": "add", "arguments": arguments} for arguments in ('{"a": 1}', "{}", "{ }", "[]")
    ]
    assert not any("index" in call for call in calls)


def test_a_whole_completion_in_an_event_or_before_the_end_of_events_is_one() -> None:
    whole = {"choices": [{"index": 0, "message": {"role": "assistant", "content": "4"}, "finish_reason": "stop"}]}
    assert parse_body(events(whole)) == whole
    assert parse_body(json.dumps(whole).encode() + b"data: [DONE]\n\n") == whole
    assert parse_body(b"\n \n" + json.dumps(whole).encode()) == whole


@pytest.mark.parametrize(
    ("content", "kind", "said"),
    [
        (events(chunk(content="fo"), done=False), "transient", "end before the completion does"),
        (events(chunk(content="fo"))[:-30], "transient", "not valid JSON"),
        (b": keep-alive\n\n", "transient", "end before the completion does"),
        (events({"type": "response.created"}), "permanent", "events that are no chunks of a completion"),
        (events({"choices": [None]}), "permanent", "no chunks of a completion"),
        (events({"choices": [{"delta": "four"}]}), "permanent", "no chunks of a completion"),
        (b'{"choices": []}\n{"choices": []}\n', "permanent", "several JSON values, expected one completion"),
        (b"502 Bad Gateway", "transient", "not valid JSON"),
    ],
)
def test_what_is_cut_is_tried_again_and_what_is_not_one_object_is_named(content: bytes, kind: str, said: str) -> None:
    with pytest.raises(RequestFailed, match=said) as caught:
        parse_body(content)
    assert caught.value.failure.kind == kind


def test_an_error_amid_the_events_is_kept() -> None:
    assert parse_body(events(chunk(content="fo"), {"error": {"code": 502}}, done=False))["error"] == {"code": 502}
