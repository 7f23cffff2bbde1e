import json
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerBase

from examples.embedded.shop import CALCULATOR_SCHEMA
from stillhouse.chat.parse import parse_completion
from stillhouse.chat.rendering import TemplateError
from stillhouse.chat.round_trip import RoundTrip, reads_calls
from stillhouse.chat.samples import render_spans
from stillhouse.chat.tokenizer import load_tokenizer

END = "<|im_end|>"
TOOLS: list[Any] = [CALCULATOR_SCHEMA]
HEAD = "{% for m in messages %}{{ m.role }}: "
TAIL = "<|im_end|>{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"
CALLS = "{% for c in m.tool_calls or [] %}{% set f = c.function %}"
# A template of each kind: Llama's JSON under another key, Qwen3-Coder's tags, one that shows no calls.
SPEAKS = HEAD + "{{ m.content }}"
LLAMA = SPEAKS + CALLS + '{"name": "{{ f.name }}", "parameters": {{ f.arguments | tojson }}}{% endfor %}' + TAIL
CODER = (
    SPEAKS + CALLS + "<tool_call><function={{ f.name }}>{% for k, v in f.arguments.items() %}"
    "<parameter={{ k }}>{{ v }}</parameter>{% endfor %}</function></tool_call>{% endfor %}" + TAIL
)
TEXTS = st.text(st.characters(codec="utf-8"), max_size=8) | st.just("</tool")
PIECES = ["a", " ", "\n", "<think>", "</think>", "<tool_call>", "</tool_call>", '{"name": "f", "arguments": {}}']
DEAF = SPEAKS + TAIL


def call(arguments: Any, name: str = "calculator") -> dict[str, Any]:
    return {"id": "c", "type": "function", "function": {"name": name, "arguments": arguments}}


def problem(message: Any, template: str | None = None, tools: list[Any] | None = TOOLS) -> str | None:
    tokenizer = load_tokenizer("embedded:student")
    tokenizer.chat_template = template or tokenizer.chat_template
    return problem_with(tokenizer, message, tools)


def problem_with(tokenizer: PreTrainedTokenizerBase, message: Any, tools: list[Any] | None) -> str | None:
    messages: Any = [{"role": "user", "content": "q"}, {"role": "assistant", **message}]
    return RoundTrip(tokenizer).problem(messages, tools, render_spans(tokenizer, messages, tools))


@pytest.mark.parametrize(
    "message",
    [
        {"content": "The answer is 3."},
        {"content": "  spaces at the ends \n"},
        {"content": None, "tool_calls": [call('{"expression":"1+2"}')]},
        {"content": "First.", "tool_calls": [call('{"a": [1, {"b": null}]}'), call("{}", "other")]},
        {"content": None, "tool_calls": [call({"expression": "1 + 2"})]},
        {"content": None, "tool_calls": [call('"{\\"a\\": 1}"')]},
        {"content": "hm", "tool_calls": [call("<tool_call>{oops</tool_call>", "malformed_tool_call")]},
        {"content": "<think>\nhm\n</think>\n\nyes"},
        {"content": "yes", "reasoning_content": "hm"},
        {"content": [{"type": "text", "text": "in "}, {"type": "text", "text": "parts"}]},
    ],
)
def test_what_comes_back_as_it_was_is_no_problem(message: Any) -> None:
    assert problem(message) is None


@pytest.mark.parametrize(
    ("message", "difference"),
    [
        ({"content": None, "tool_calls": [call("oops")]}, r'call calculator\("oops"\) reads as malformed_tool_call'),
        ({"content": '<tool_call>{"name": "f", "arguments": {}}</tool_call>'}, "0 tool calls were made, 1 are read"),
        ({"content": "a", "reasoning_content": "x</think>y"}, "content 'a' reads as 'y"),
    ],
)
def test_what_reads_as_something_else_is_reported_with_its_message(message: Any, difference: str) -> None:
    assert re.search(f"^message 1 is rendered as something else: .*{difference}", str(problem(message)))


def test_a_block_in_the_text_is_text_where_no_tools_were_offered() -> None:
    assert problem({"content": '<tool_call>{"name": "f", "arguments": {}}</tool_call>'}, tools=None) is None


@pytest.mark.parametrize("template", [LLAMA, CODER])
def test_templates_of_another_form_have_to_show_every_name_and_value(template: str) -> None:
    shown = {"content": "Let me see.", "tool_calls": [call('{"expression": "a \\"b\\"", "deep": [1.5, true, null]}')]}
    assert problem(shown, template) is None


@pytest.mark.parametrize("arguments", ["{broken", "[1,2]", "3"])
@pytest.mark.parametrize("template", [None, LLAMA])
def test_arguments_that_are_no_object_are_a_problem_under_every_template(arguments: str, template: str | None) -> None:
    assert problem({"content": "a", "tool_calls": [call(arguments)]}, template) is not None


def test_a_template_that_writes_no_calls_refuses_rows_that_call() -> None:
    assert problem({"content": "a"}, DEAF) is None
    with pytest.raises(TemplateError, match="calculator in message 1"):
        problem({"content": "a", "tool_calls": [call("{}")]}, DEAF)


def test_a_template_that_drops_content_is_a_problem() -> None:
    assert "content 'abc' is not in it" in str(problem({"content": "abc"}, HEAD + TAIL))


@settings(max_examples=50)
@given(
    content=st.text(st.characters(codec="utf-8", exclude_characters="<"), max_size=12),
    calls=st.lists(st.dictionaries(TEXTS, TEXTS | st.integers() | st.lists(TEXTS), max_size=3), max_size=3),
)
def test_plain_text_and_calls_with_any_arguments_come_back(
    tokenizer: PreTrainedTokenizerBase, content: str, calls: list[Any]
) -> None:
    message = {"content": content, "tool_calls": [call(json.dumps(arguments)) for arguments in calls]}
    assert problem_with(tokenizer, message, TOOLS) is None


@settings(max_examples=100)
@given(pieces=st.lists(st.sampled_from(PIECES), max_size=8))
def test_text_that_reads_as_a_call_nobody_made_is_always_a_problem(
    tokenizer: PreTrainedTokenizerBase, pieces: list[str]
) -> None:
    messages: Any = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "".join(pieces)}]
    (spans,) = render_spans(tokenizer, messages, TOOLS)
    if "tool_calls" in parse_completion(spans[1].text.removesuffix(END + "\n")):
        assert "0 tool calls were made" in str(RoundTrip(tokenizer).problem(messages, TOOLS, [spans]))


def test_it_is_known_whether_calls_are_read_as_the_template_writes_them(family: Any, speaking: Any) -> None:
    assert [name for name in ("qwen3", "llama3", "mistral", "gemma") if reads_calls(family(name))] == ["qwen3"]
    assert [template for template in (CODER, LLAMA) if reads_calls(speaking(template))] == [CODER]


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        ({"role": "assistant", "content": "a<|im_start|>user\nb"}, "it holds <|im_start|>, which begins or ends"),
        ({"role": "assistant", "content": "a <|endoftext|> b"}, "it holds <|endoftext|>, which begins or ends"),
        ({"role": "assistant", "content": f"a{END}b"}, "it holds <|im_end|>, which begins or ends a turn"),
        ({"role": "assistant", "content": "b", "reasoning_content": "a</think>"}, "reads as"),
    ],
)
def test_what_would_be_learnt_to_end_early_is_reported(tokenizer: Any, message: Any, problem: str) -> None:
    messages = [{"role": "user", "content": "q"}, message]
    found = RoundTrip(tokenizer).problem(messages, None, render_spans(tokenizer, messages, None))
    assert problem in str(found)
