import json
from collections.abc import Callable

import pytest

from stillhouse.prompts import ParsedPrompts

Load = Callable[..., ParsedPrompts]
HELLO = [{"role": "user", "content": "Hello"}]


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"question": "q", "answer": "4"}, ["q"]),
        ({"instruction": "q", "output": "a"}, ["q"]),
        ({"instruction": "q", "input": "more", "output": "a"}, ["q\nmore"]),
        ({"instruction": "q", "input": "", "system": ""}, ["q"]),
        ({"problem": "q", "level": "a", "prompt": None}, ["q"]),
        ({"query": "q", "question": ""}, ["q"]),
    ],
)
def test_a_row_without_a_prompt_is_asked_its_only_question_and_that_is_told(
    read: Load, row: dict[str, object], said: list[str]
) -> None:
    loaded = read(json.dumps(row))
    (prompt,) = loaded.prompts
    assert [message["content"] for message in prompt.messages] == said
    assert list(loaded.report.notes.values()) == [1]
    assert prompt.id == read(json.dumps({"messages": prompt.messages})).prompts[0].id


def test_a_system_message_beside_the_prompt_is_told_of_since_it_is_not_sent(read: Load) -> None:
    loaded = read('{"prompt": "q", "system": "Brief."}\n' * 2 + '{"prompt": "r", "system": ""}\n')
    assert loaded.prompts[0].id == read('{"prompt": "q"}').prompts[0].id
    ((note, number),) = loaded.report.notes.items()
    assert ("`system`" in note, number) == (True, 2)


def test_a_developer_is_a_system_message_and_a_human_a_user(read: Load) -> None:
    row = {"messages": [{"role": "developer", "content": "Brief."}, {"role": "human", "content": "q"}]}
    loaded = read(json.dumps(row))
    assert [message["role"] for message in loaded.prompts[0].messages] == ["system", "user"]


def test_every_row_form_of_one_prompt_is_the_same_prompt(read: Load) -> None:
    rows = [
        {"prompt": "Hello"},
        {"messages": HELLO},
        {"messages": json.dumps(HELLO)},
        {"prompt": HELLO},
        {"messages": [{"role": "user", "content": "Hello", "name": None, "tool_calls": None}]},
        {"messages": [json.dumps(HELLO[0])]},
    ]
    loaded = read("\n".join(map(json.dumps, rows)))
    assert [prompt.messages for prompt in loaded.prompts] == [HELLO]
    assert loaded.report.duplicates == 5
    assert loaded.report.rows_read == 6


def test_metadata_of_row_and_of_its_metadata_travels_whole(read: Load) -> None:
    row = {
        "id": 7, "difficulty": 0.5, "prompt": "the text", "messages": json.dumps(HELLO), "tag": "math",
        "ground_truth": "72", "tools": ["calculator"], "docker": "local/x",
        "metadata": {"verifier": "numeric", "answer": "", "difficulty": 1, "nested": {"a": [None]}},
    }  # fmt: skip
    loaded = read(json.dumps(row))
    (entry,) = loaded.metadata.values()
    assert loaded.prompts[0].tools == ["calculator"]
    assert (entry.expected_answer, entry.tag, entry.verifier) == ("72", "math", "numeric")
    assert entry.metadata == {
        "id": 7, "difficulty": 1, "prompt": "the text", "docker": "local/x", "answer": "", "nested": {"a": [None]},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("row", "verifier"),
    [
        ({"verifier": "list", "tag": "math"}, "list"),
        ({"tag": "math"}, "math"),
        ({"tag": "math", "test_cases": ["assert f()"]}, "math"),
        ({"ground_truth": "", "tag": "KodCode", "test_cases": '[{"assert_code": "assert f()"}]'}, "python"),
        ({"answer": "4", "test_cases": ["assert f()"]}, "numeric"),
        ({"tag": "other", "test_cases": []}, "numeric"),
        ({}, "numeric"),
    ],
)
def test_verifier_is_the_rows_own_then_its_tags_then_the_configs(
    read: Load, row: dict[str, object], verifier: str
) -> None:
    config = {"verifier": "numeric", "verifier_by_tag": {"math": "math"}}
    (entry,) = read(json.dumps({"prompt": "p", **row}), **config).metadata.values()
    assert entry.verifier == verifier
    assert entry.metadata.get("test_cases") == row.get("test_cases")


BAD_LINES = [
    ('{"question": "x", "instruction": "y"}', "expected a key `prompt` or `messages`, or one of question,"),
    ('{"question": ["x"]}', "expected question to be a text, saw list ['x']"),
    ('{"instruction": "x", "history": [["a", "b"]]}', "--from alpaca"),
    ('{"instruction": "x", "system": "Brief."}', "--from alpaca"),
    ('{"conversations": [{"from": "human", "value": "x"}]}', "stillhouse convert"),
    ('[', ".json"),
    ('[{"prompt": "x", 5]', "expected a JSON object"),
    ('{"prompt": "\\ud800"}', "expected a JSON object"),
    ('{"prompt": "x"} rest', "expected a JSON object"),
    ('{"topic": "x"}', "saw keys: topic"),
    ('"just text"', "expected a JSON object"),
    ("just text", "expected a JSON object, saw 'just text'"),
    ('{"messages": []}', "not empty"),
    ('{"messages": "no json"}', "expected messages to be JSON"),
    ('{"messages": [{"role": "robot", "content": "x"}]}', "messages[0].role"),
    ('{"messages": [{"role": "user", "content": 5}]}', "messages[0].content"),
    ('{"messages": [{"role": "user", "content": " "}]}', "to have content"),
    ('{"messages": [{"role": "user", "content": null}]}', "to have content"),
    ('{"messages": [{"role": "assistant", "content": "x"}]}', "user or system message"),
    ('{"messages": ["x"]}', "messages[0]"),
    ('{"messages": [{"role": "user", "content": ["x"]}]}', "part"),
    ('{"prompt": "x", "tools": "calculator"}', "tools"),
    ('{"prompt": "x", "tools": [{"a": 1}]}', "tool names"),
    ('{"prompt": "x", "metadata": [1]}', "metadata to be an object"),
    ('{"prompt": "x", "tag": {"a": 1}}', "tag to be text or a number"),
    ('{"prompt": "x", "answer": "a(", "verifier": "regex"}', "under `regex` to be a regular expression, saw str 'a('"),
    ('{"prompt": "x", "metadata": {"verifier": "guess"}}', "one of exact, normalised, contains"),
    ('{"messages": [{"role": "user", "content": "x", "tool_calls": [{"id": "1"}]}]}', "tool_calls"),
    ('{"prompt": "torn', "may be cut off"),
]  # fmt: skip


@pytest.mark.parametrize(("line", "expected"), BAD_LINES)
def test_malformed_row_is_reported_with_its_line_and_the_rest_goes_on(read: Load, line: str, expected: str) -> None:
    loaded = read('{"prompt": "good"}\n\n{"prompt": "fine"}\n' + line, failure_budget=0.5)
    assert [prompt.messages[-1]["content"] for prompt in loaded.prompts] == ["good", "fine"]
    (problem,) = loaded.report.malformed
    assert "prompts.jsonl, line 4: " in problem
    assert expected in problem
    assert loaded.report.rows_read == 3
