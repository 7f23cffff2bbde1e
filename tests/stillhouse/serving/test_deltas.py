from typing import Any

import pytest

from stillhouse.chat.parse import MALFORMED_CALL, parse_completion
from stillhouse.serving.deltas import MessageDeltas

CALL = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'

PARAMETERS = {"type": "object", "properties": {"a": {"type": "string"}}}
TOOLS: list[Any] = [{"type": "function", "function": {"name": "f", "parameters": PARAMETERS}}]


def joined(pieces: list[str], *, with_calls: bool = True, in_thought: bool = False) -> dict[str, Any]:
    """The message that a client makes of the deltas."""
    deltas = MessageDeltas(3, TOOLS if with_calls else [], in_thought=in_thought)
    message: dict[str, Any] = {"role": "assistant", "content": None}
    sent = [delta for piece in pieces for delta in deltas.feed(piece)]
    for delta in [*sent, *deltas.feed("", is_end=True)]:
        for field in ("content", "reasoning_content"):
            if field in delta:
                assert delta[field], "no empty deltas"
                message[field] = (message.get(field) or "") + delta[field]
        for call in delta.get("tool_calls", []):
            calls = message.setdefault("tool_calls", [])
            assert call.pop("index") == len(calls)
            calls.append(call)
    return message


@pytest.mark.parametrize(
    "text",
    [
        "Plain text.",
        " \n",
        "The answer is < 3 and <tool",
        CALL,
        f"{CALL}\n{CALL}",
        "<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>",
        f"\n\n{CALL}\n",
        f"Let me see.\n{CALL}",
        f"Let me see.\n\n{CALL}\nThen more.{CALL}\n",
        '<tool_call>\n{"name": "f", "arg',
        "<tool_call>\nnonsense\n</tool_call> and on",
        "<think>\nIt is\n\n3.\n</think>\n\nThree.",
        f"<think>\nI call.\n</think>\n\n{CALL}",
        "<think></think>\n\nThree.",
        "<think>\n\n</think>\n\n ",
        "<think>\nNever done\n",
        "<thin",
        "",
        f"<think>maybe {CALL}</think>{CALL}",
    ],
)
@pytest.mark.parametrize("with_calls", [True, False])
def test_deltas_of_any_pieces_make_the_message_that_is_parsed_whole(text: str, with_calls: bool) -> None:
    message: dict[str, Any] = {**parse_completion(text, 3, TOOLS, with_calls=with_calls)}
    message["content"] = message["content"] or None
    for size in (1, 2, 3, 7, 1000):
        pieces = [text[start : start + size] for start in range(0, len(text), size)]
        assert joined(pieces, with_calls=with_calls) == message, size


def test_reasoning_that_the_prompt_began_is_sent_as_such_from_the_start() -> None:
    message = joined(list("\nIt is 3.\n</think>\n\nThree."), in_thought=True)
    assert message == {"role": "assistant", "reasoning_content": "It is 3.", "content": "Three."}


def test_text_is_sent_as_soon_as_it_cannot_be_a_tag() -> None:
    deltas = MessageDeltas(0, TOOLS, in_thought=False)
    assert [list(deltas.feed(piece)) for piece in ("Go", "\n<tool", "s>")] == [
        [{"content": "Go"}], [], [{"content": "\n<tools>"}],
    ]  # fmt: skip


def test_a_call_is_one_delta_with_its_id() -> None:
    deltas = MessageDeltas(5, TOOLS, in_thought=False)
    [delta] = [delta for character in CALL for delta in deltas.feed(character)]
    function = {"name": "f", "arguments": '{"a": 1}'}
    assert delta == {"tool_calls": [{"index": 0, "id": "call_5", "type": "function", "function": function}]}


def test_a_cut_call_is_malformed() -> None:
    assert joined(["<tool_call>\n{"])["tool_calls"][0]["function"] == {
        "name": MALFORMED_CALL,
        "arguments": "<tool_call>\n{",
    }
