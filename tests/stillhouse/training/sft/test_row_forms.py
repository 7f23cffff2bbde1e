import json
from typing import Any

import pytest

from stillhouse.prompts.row import RowProblem
from stillhouse.store import prompt_id
from stillhouse.training.sft.row_forms import parse_conversation

MESSAGES: list[Any] = [{"role": "user", "content": "2 + 3?"}, {"role": "assistant", "content": "5"}]
FUNCTION = {"name": "calculator", "parameters": {"type": "object", "properties": {}}}
IMAGE = {"type": "image_url", "image_url": {"url": "cat.png"}}
SCHEMA = {"type": "function", "function": FUNCTION}


@pytest.mark.parametrize(
    "row",
    [
        {"messages": MESSAGES},
        {"messages": json.dumps(MESSAGES)},
        {"messages": [json.dumps(message) for message in MESSAGES]},
        {"messages": [{**message, "tool_calls": None, "name": None} for message in MESSAGES]},
        {"conversations": [{"from": "human", "value": "2 + 3?"}, {"from": "gpt", "value": "5"}]},
        {"prompt": "2 + 3?", "completion": "5"},
        {"prompt": MESSAGES[:1], "completion": MESSAGES[1:]},
    ],
)
def test_each_form_gives_the_same_conversation(row: dict[str, Any]):
    conversation = parse_conversation(row)
    assert conversation.messages == MESSAGES
    assert conversation.tools == []
    assert conversation.prompt_id == prompt_id(MESSAGES[:1], None)


@pytest.mark.parametrize("tools", [[SCHEMA], json.dumps([SCHEMA]), [json.dumps(SCHEMA)], [FUNCTION]])
def test_tools_are_schemas_however_they_are_written(tools: Any):
    conversation = parse_conversation({"messages": MESSAGES, "tools": tools})
    assert conversation.tools == [SCHEMA]
    assert conversation.prompt_id == prompt_id(MESSAGES[:1], ["calculator"])


def test_a_row_keeps_its_own_prompt_id_and_tag():
    conversation = parse_conversation({"messages": MESSAGES, "prompt_id": "p", "tag": "math"})
    assert (conversation.prompt_id, conversation.tag) == ("p", "math")


def test_a_message_of_weight_zero_is_context():
    conversation = parse_conversation({"messages": [*MESSAGES, MESSAGES[0], {**MESSAGES[1], "weight": 0}]})
    assert conversation.excluded == {3}
    assert "weight" not in conversation.messages[3]


def test_text_that_looks_like_json_stays_text():
    assert parse_conversation({"prompt": "[1]", "completion": "{}"}).messages[1]["content"] == "{}"


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"question": "a", "reply": "b"}, "saw the keys question, reply.*stillhouse convert"),
        ({"messages": "hi"}, "expected messages to be JSON, saw str 'hi'"),
        ({"messages": []}, r"saw list \[\]"),
        ({"messages": ["hi"]}, r"expected messages\[0\] to be JSON, saw str 'hi'"),
        ({"messages": [{"role": "bot", "content": "a"}]}, r"messages\[0\].role to be one of system, .*saw str 'bot'"),
        ({"messages": [{"role": "user", "content": 5}]}, r"messages\[0\].content to be text.*saw int 5"),
        (
            {"messages": [{"role": "user", "content": [IMAGE]}]},
            r"messages\[0\].content\[0\] .*text.*saw dict .'type': 'im",
        ),
        ({"messages": [{"role": "user", "content": ["hi"]}]}, r"each part of messages\[0\].content .*saw list \['hi'\]"),
        ({"messages": MESSAGES[1:]}, "begins with the assistant.*expected a system or user message first"),
        ({"conversations": [{"from": "function_call", "value": "{}"}]}, r"conversations\[0\].*name and arguments"),
        ({"messages": MESSAGES, "tools": ["browse"]}, r"saw list \['browse'\].*write their schemas"),
    ],
)
def test_a_row_that_is_no_conversation_says_what_was_seen_and_expected(row: dict[str, Any], message: str):
    with pytest.raises(RowProblem, match=message):
        parse_conversation(row)
