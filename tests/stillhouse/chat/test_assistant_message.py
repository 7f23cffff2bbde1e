from typing import Any

import pytest

from stillhouse.chat.assistant_message import assistant_message, with_own_ids
from stillhouse.chat.content import calls_of
from stillhouse.types import Message, ToolSchema

PARTS = [{"type": "thinking", "thinking": [{"type": "text", "text": "carry"}]}, {"type": "text", "text": "4"}]
SIGNED = [{"type": "thinking", "thinking": "carry", "signature": "x"}, {"type": "text", "text": "4"}]


@pytest.mark.parametrize(
    ("written", "rest"),
    [
        ({"content": "4", "reasoning_content": "carry"}, {}),
        ({"content": "4", "reasoning": "carry"}, {"reasoning": "carry", "sent_back": {"reasoning_content": None}}),
        ({"content": PARTS}, {"sent_back": {"content": PARTS, "reasoning_content": None}}),
        ({"content": SIGNED}, {"sent_back": {"content": SIGNED, "reasoning_content": None}}),
        (
            {"content": "<think>carry</think>4"},
            {"sent_back": {"content": "<think>carry</think>4", "reasoning_content": None}},
        ),
        (
            {"content": "<think>carry</think>4", "reasoning_content": "carry"},
            {"sent_back": {"content": "<think>carry</think>4"}},
        ),
        # The template of gpt-oss refuses its own channels in a message.
        (
            {"content": "<|channel|>analysis<|message|>carry<|end|><|channel|>final<|message|>4"},
            {"sent_back": {"reasoning_content": None}},
        ),
    ],
)
def test_reasoning_has_one_key_and_its_endpoint_gets_back_what_it_wrote(written: Any, rest: Any) -> None:
    message = assistant_message(written)
    assert message == {"role": "assistant", "content": "4", "reasoning_content": "carry", **rest}
    assert assistant_message(message) == message


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("4<|im_end|>", "4"),
        ({"type": "text", "text": "4"}, "4"),
        ([{"type": "text", "text": "4"}, {"type": "output_text", "text": "2"}], "42"),
        (None, ""),
        ([], ""),
        (4, 4),
        ([{"type": "image_url"}], [{"type": "image_url"}]),
    ],
)
def test_content_is_text_where_it_can_be(content: Any, text: Any) -> None:
    assert assistant_message({"content": content, "refusal": None}) == {"role": "assistant", "content": text}


def test_a_server_that_parsed_the_reasoning_decides_what_is_text() -> None:
    written: Any = {"content": "It writes:</think>4", "reasoning_content": "carry"}
    assert assistant_message(written) == {"role": "assistant", **written}


def test_calls_have_text_for_arguments_and_no_call_is_no_key() -> None:
    call = {"id": "a", "function": {"name": "f", "arguments": {"x": 1}}, "extra_content": {"google": "sig"}}
    message = assistant_message({"content": "", "tool_calls": [call, "f(1)"]})
    function = {"name": "f", "arguments": '{"x":1}'}
    assert message["tool_calls"] == [{**call, "type": "function", "function": function}, "f(1)"]
    assert message["content"] is None
    assert "tool_calls" not in assistant_message({"content": "4", "tool_calls": []})
    (old,) = calls_of(assistant_message({"content": None, "function_call": {"name": "f", "arguments": ""}}))
    assert (old.name, old.arguments) == ("f", "{}")


def calling(*ids: Any) -> Message:
    calls = [{"function": {"name": "f", "arguments": "{}"}, **({} if one == "absent" else {"id": one})} for one in ids]
    return assistant_message({"content": None, "tool_calls": calls})


def test_each_call_of_a_conversation_has_an_id_of_its_own_and_a_replay_the_same() -> None:
    first = with_own_ids(calling("absent", None, "", "c0", "c0", 7), [])
    ids = [call.id for call in calls_of(first)]
    assert ids == ["call00000", "call00001", "call00002", "c0", "call00004", "call00005"]
    # Mistral takes no others.
    assert all(len(one) == 9 and one.isalnum() for one in ids if one != "c0")
    assert [call.id for call in calls_of(with_own_ids(calling("c0", "c1", "call00007"), [first]))] == [
        "call00006",
        "c1",
        "call00007",
    ]
    assert with_own_ids(calling("c5"), [first]) == calling("c5")


ARGUMENTS = '{"a": 2, "b":  3}'


def schema(name: str) -> ToolSchema:
    return {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {}}}}


TOOLS = [schema("add"), schema("now"), schema("get_time"), schema("get_it"), schema("GET_IT")]


def names(message: Any, tools: list[ToolSchema] = TOOLS) -> list[str]:
    return [call["function"]["name"] for call in assistant_message(message, tools).get("tool_calls", ())]


def call(name: Any) -> dict[str, Any]:
    return {"id": "c1", "type": "function", "function": {"name": name, "arguments": ARGUMENTS}}


@pytest.mark.parametrize(
    ("written", "read"),
    [
        *(
            (name, "add")
            for name in ("add", " add\n", "Add", "ADD", "functions.add", "function:add", "tools.add", "functions.add:0")
        ),
        *((name, "add") for name in ("default_api.add", "add<|channel|>commentary", "add<|constrain|>json", "add:12")),
        ("get-time", "get_time"),
        ("get_it", "get_it"),
        ("Get_It", "Get_It"),
        ("addition", "addition"),
        ("other.add", "other.add"),
        ("", ""),
    ],
)
def test_a_decorated_name_is_the_one_offered_tool_that_it_can_mean(written: str, read: str) -> None:
    assert names({"tool_calls": [call(written)]}) == [read]


def test_without_offered_tools_names_and_texts_stay() -> None:
    assert names({"tool_calls": [call("functions.add")]}, []) == ["functions.add"]
    text = '<tool_call>{"name": "add", "arguments": {}}</tool_call>'
    assert assistant_message({"content": text}) == {"role": "assistant", "content": text}


def test_the_first_form_of_a_call_is_read() -> None:
    assert names({"function_call": {"name": "functions.add", "arguments": ARGUMENTS}}) == ["add"]
    assert assistant_message({"content": "hm", "function_call": {}}, TOOLS) == {"role": "assistant", "content": "hm"}


@pytest.mark.parametrize("thinking", ["", "<think>2 and 2</think>"])
def test_calls_that_the_server_left_in_the_text_are_read_if_all_are_of_offered_tools(thinking: str) -> None:
    block = '<tool_call>\n{"name": "add", "arguments": {"a": 2}}\n</tool_call>'
    read: Any = assistant_message({"content": f"{thinking}I add.{block}"}, TOOLS)
    assert read["content"] == "I add."
    assert read["tool_calls"][0]["function"] == {"name": "add", "arguments": '{"a": 2}'}
    # The block goes back as a call alone.
    assert "sent_back" not in read
    assert ("reasoning_content" in read) == bool(thinking)
    for text in (f"{block}<tool_call>not a call</tool_call>", block.replace("add", "rm"), "<tool_call> is a tag"):
        assert assistant_message({"content": text}, TOOLS) == {"role": "assistant", "content": text}


@pytest.mark.parametrize("odd", [["x"], [{"function": None}], [call(None)], [call(7)]])
def test_calls_without_a_name_are_left_to_whoever_runs_them(odd: Any) -> None:
    assert assistant_message({"tool_calls": odd}, TOOLS)["tool_calls"] == odd
