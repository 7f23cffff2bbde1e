import pytest
from hypothesis import given
from hypothesis import strategies as st

from stillhouse.interop.messages import first_answer, read_messages
from stillhouse.prompts.row import RowProblem

USER = {"role": "user", "content": "What is 2 + 2?"}
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 2,  "b": 2}}\n</tool_call>'


def test_calls_in_the_text_become_calls_and_results_get_their_ids() -> None:
    messages = read_messages(
        [USER, {"role": "assistant", "content": f"Let me see.\n{CALL}\n{CALL}"}]
        + [{"role": "tool", "content": "4"}] * 2
        + [{"role": "assistant", "content": CALL}, {"role": "tool", "content": "4"}]
    )
    first, second = messages[1], messages[4]
    assert first["content"] == "Let me see."
    assert [call["id"] for call in first["tool_calls"]] == ["call_0", "call_1"]
    assert first["tool_calls"][0]["function"] == {"name": "add", "arguments": '{"a": 2,  "b": 2}'}
    assert [message["tool_call_id"] for message in messages[2:4]] == ["call_0", "call_1"]
    assert second["tool_calls"][0]["id"] == messages[5]["tool_call_id"] == "call_2"


def test_text_that_speaks_of_calls_is_no_call() -> None:
    said = "Qwen writes <tool_call>{...}</tool_call> around its calls."
    assert read_messages([USER, {"role": "assistant", "content": said}])[1]["content"] == said
    broken = read_messages([USER, {"role": "assistant", "content": "<tool_call>{"}, {"role": "tool", "content": "bad"}])
    assert broken[1]["tool_calls"][0]["function"]["name"] == "malformed_tool_call"


def test_reasoning_gets_a_key_of_its_own() -> None:
    parts = [{"type": "thinking", "thinking": "carry"}, {"type": "text", "text": "4"}]
    for content in (parts, "<think>\ncarry\n</think>\n\n4"):
        message = read_messages([USER, {"role": "assistant", "content": content}])[1]
        assert message == {"role": "assistant", "content": "4", "reasoning_content": "carry"}


def test_parts_of_other_kinds_stay_parts() -> None:
    parts = [{"type": "text", "text": "See"}, {"type": "image_url", "image_url": {"url": "u"}}]
    assert read_messages([{"role": "user", "content": parts}])[0]["content"] == parts


def test_arguments_that_are_objects_become_json_text_and_nulls_absent() -> None:
    call = {"id": "a", "function": {"name": "add", "arguments": {"b": 2, "a": 1}}}
    said = {"role": "assistant", "content": None, "tool_calls": [call], "name": None}
    message = read_messages([USER, said])[1]
    assert message["tool_calls"][0]["function"]["arguments"] == '{"b":2,"a":1}'
    assert message.keys() == {"role", "content", "tool_calls"}


@pytest.mark.parametrize("value", [None, [], {}, "[", "3", [1], [None]])
def test_what_is_no_list_of_messages_is_refused_with_the_value_seen(value: object) -> None:
    with pytest.raises(RowProblem, match="saw"):
        read_messages(value)


@given(st.lists(st.sampled_from(["user", "assistant", "tool"]), max_size=12), st.integers(0, 12))
def test_what_was_sampled_begins_with_the_assistant_and_holds_the_turns_asked_for(
    roles: list[str], num_turns: int
) -> None:
    messages = [{"role": role, "content": "x"} for role in roles]
    start = first_answer(messages, num_turns)  # type: ignore[arg-type]
    answers = roles[start:].count("assistant")
    if "assistant" not in roles:
        assert start == len(roles)
    else:
        assert roles[start] == "assistant"
        assert answers == (num_turns if 0 < num_turns <= roles.count("assistant") else roles.count("assistant"))


@given(st.lists(st.text(max_size=40), min_size=1, max_size=5))
def test_plain_conversations_are_not_changed(texts: list[str]) -> None:
    texts = [text for text in texts if "<t" not in text]
    messages = [USER, *({"role": "assistant", "content": text} for text in texts)]
    assert read_messages(messages) == messages
