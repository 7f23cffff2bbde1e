import json
import re
from typing import Any

import pytest

from stillhouse.prompts.row import RowProblem
from stillhouse.store import prompt_id
from stillhouse.training.sft.row_forms import (
    TrainingConversation,
    answer_problem,
    dataset_conversation,
    parse_conversation,
)

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
        {"instruction": "2 + 3?", "input": "", "output": "5"},
        {"messages": [{"role": "human", "content": "2 + 3?"}, {"role": "model", "content": "5"}]},
        {"messages": MESSAGES, "chosen": None, "label": True, "parallel_tool_calls": False},
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


@pytest.mark.parametrize(
    ("row", "learnt"),
    [
        ({"messages": [*MESSAGES, MESSAGES[0], {**MESSAGES[1], "train": False}]}, [1]),
        ({"messages": [MESSAGES[0], {**MESSAGES[1], "loss_mask": 0}, *MESSAGES]}, [3]),
        ({"prompt": [*MESSAGES, MESSAGES[0]], "completion": MESSAGES[1:]}, [3]),
        ({"prompt": [*MESSAGES, MESSAGES[0]], "completion": MESSAGES[1:], "system": "Brief."}, [4]),
        ({"system": "Brief.", "messages": MESSAGES}, [2]),
        ({"instruction": "and 4?", "output": "6", "history": [["2 + 3?", "5"]]}, [3]),
        ({"conversations": [{"from": "gpt", "value": "a", "weight": 0}, *MESSAGES]}, [2]),
    ],
)
def test_only_the_answers_that_a_row_says_are_learnt(row: dict[str, Any], learnt: list[int]):
    conversation = parse_conversation(row)
    answers = {index for index, message in enumerate(conversation.messages) if message["role"] == "assistant"}
    assert sorted(answers - conversation.excluded) == learnt


def test_a_deprecated_function_call_is_a_call_and_its_functions_are_tools():
    said = {"role": "assistant", "content": None, "function_call": {"name": "calculator", "arguments": "{}"}}
    result = {"role": "function", "name": "calculator", "content": "5"}
    conversation = parse_conversation({"messages": [MESSAGES[0], said, result], "functions": [FUNCTION]})
    assert conversation.tools == [SCHEMA]
    (call,) = conversation.messages[1]["tool_calls"]
    assert call["function"] == {"name": "calculator", "arguments": "{}"}
    assert conversation.messages[2]["tool_call_id"] == call["id"]


def calling(arguments: str) -> dict[str, Any]:
    return {"content": None, "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": arguments}}]}


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        ({"content": "5"}, None),
        ({"content": ""}, r"messages\[1\] is an empty answer"),
        ({"content": None}, "empty answer"),
        ({"content": " \n"}, "empty answer"),
        ({"content": [{"type": "text", "text": ""}]}, "empty answer"),
        ({"content": "", "reasoning_content": "hm"}, None),
        (calling('{"a": 1}'), None),
        (calling(""), None),
        (calling("{broken"), r"f\(\{broken\) has no JSON object as its arguments"),
        (calling("[1,2]"), r"f\(\[1,2\]\) has no JSON object as its arguments"),
        (calling("null"), None),
        ({"content": "ends with <end>."}, "it holds <end>, which begins or ends a turn"),
        (calling('{"a": "<end>"}'), "it holds <end>"),
        ({"content": "a <end>", "weight": 0}, None),
        ({"content": "", "train": False}, None),
    ],
)
def test_an_answer_that_must_not_be_learnt_is_told_with_its_reason(answer: dict[str, Any], problem: str | None):
    conversation = parse_conversation({"messages": [MESSAGES[0], {"role": "assistant", **answer}]})
    found = answer_problem(conversation, ("<end>",))
    assert found is None if problem is None else re.search(problem, str(found))


def test_text_that_looks_like_json_stays_text():
    assert parse_conversation({"prompt": "[1]", "completion": "{}"}).messages[1]["content"] == "{}"


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"question": "a", "reply": "b"}, "question, reply.*stillhouse convert"),
        ({"messages": "hi"}, "messages .*JSON, saw str 'hi'"),
        ({"messages": []}, r"saw list \[\]"),
        ({"messages": ["hi"]}, r"messages\[0\] .*JSON, saw str 'hi'"),
        ({"messages": [{"role": "bot", "content": "a"}]}, r"messages\[0\].role .*saw str 'bot'"),
        ({"messages": [{"role": "user", "content": 5}]}, r"messages\[0\].content to be text.*saw int 5"),
        ({"messages": [{"role": "user", "content": [IMAGE]}]}, r"messages\[0\].content .*saw list .*'type': 'im"),
        ({"messages": [{"role": "user", "content": ["hi"]}]}, r"messages\[0\].content .*saw list \['hi'\]"),
        ({"messages": MESSAGES[1:]}, "message first, saw the assistant's"),
        ({"conversations": [{"from": "function_call", "value": "{}"}]}, r"messages\[0\] .*function_call"),
        ({"prompt": "q", "chosen": "a", "rejected": "b"}, "prompt, chosen, rejected"),
        ({"text": "once upon a time"}, "saw the keys text"),
        ({"messages": MESSAGES, "rejected": "6"}, "rejected is str '6'"),
        ({"prompt": "q", "completion": "a", "label": False}, "label is false"),
        ({"messages": MESSAGES, "images": ["a.png"]}, "images is list "),
        ({"messages": MESSAGES, "weight": 0.5}, "weight is float 0.5: .*sft.sources"),
        ({"messages": [MESSAGES[0], {**MESSAGES[1], "weight": 0.5}]}, r"messages\[1\].weight: .*0, 1"),
        ({"messages": MESSAGES, "tools": ["browse"]}, r"saw list \['browse'\]"),
    ],
)
def test_a_row_that_is_no_conversation_says_what_was_seen_and_expected(row: dict[str, Any], message: str):
    with pytest.raises(RowProblem, match=message):
        parse_conversation(row)


def test_a_row_of_a_dataset_of_this_project_is_taken_as_it_is_unless_it_holds_more_than_text():
    row = {"id": "r", "messages": MESSAGES, "tools": [SCHEMA], "prompt_id": "p", "tag": None, "turns": 1}
    assert dataset_conversation(row) == TrainingConversation(MESSAGES, [SCHEMA], "p", None, "r")
    with pytest.raises(RowProblem, match="image_url"):
        dataset_conversation({**row, "messages": [{"role": "user", "content": [IMAGE]}]})


def test_answers_that_a_prompt_brings_are_read_and_not_learnt():
    messages = [*MESSAGES, {"role": "user", "content": "And then?"}, {"role": "assistant", "content": "That is all."}]
    row = {"id": "r", "messages": messages, "tools": [SCHEMA], "prompt_id": "p", "tag": None, "turns": 1}
    given = [number for number, message in enumerate(MESSAGES) if message["role"] == "assistant"]
    assert given
    assert dataset_conversation(row).excluded == set(given)
    assert dataset_conversation({**row, "turns": 1 + len(given)}).excluded == frozenset()
