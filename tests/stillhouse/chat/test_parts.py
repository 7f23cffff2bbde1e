import copy
import itertools
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerBase

from examples.embedded.shop import CALCULATOR_SCHEMA
from stillhouse.chat.parts import ALL_PARTS, Part
from stillhouse.chat.rendering import TemplateError
from stillhouse.chat.samples import render_samples

Family = Callable[[str], PreTrainedTokenizerBase]
END = "<|im_end|>"
SUBSETS: list[frozenset[Part]] = [
    frozenset(some) for size in (1, 2) for some in itertools.combinations(ALL_PARTS, size)
]
# Every part is where the source says, with the marks that the texts below try to be confused with.
PLAIN = (
    "{% for m in messages %}{{ m.role }}:"
    "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}"
    "{{ m.content }}{% for c in m.tool_calls or [] %}<tool_call>{{ c.function.name }}</tool_call>{% endfor %}<|im_end|>"
    "{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"
)
PIECES = st.lists(
    st.sampled_from(["a", "<", ">", " ", "\n", "\u00e9", "</tool_call>", "<tool_call>", "<think>"]), max_size=4
)
TEXTS = PIECES.map("".join)


def call(name: str, **arguments: Any) -> dict[str, Any]:
    return {"id": "call00000", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}


def with_template(family: Family, template: str) -> PreTrainedTokenizerBase:
    tokenizer = copy.copy(family("qwen3"))
    tokenizer.chat_template = template
    return tokenizer


def learnt(tokenizer: PreTrainedTokenizerBase, message: Any, *parts: Part, tools: Any = None) -> str:
    messages: Any = [{"role": "user", "content": "q"}, {"role": "assistant", **message}]
    (sample,) = render_samples(tokenizer, messages, tools, frozenset(parts))
    return str(tokenizer.decode([token for token, trained in zip(*sample[:2], strict=True) if trained]))


@settings(max_examples=100)
@given(content=TEXTS, reasoning=TEXTS, names=st.lists(TEXTS, max_size=2))
def test_each_choice_of_parts_learns_exactly_these(
    family: Family, content: str, reasoning: str, names: list[str]
) -> None:
    tokenizer = with_template(family, PLAIN)
    message = {"content": content, "reasoning_content": reasoning, "tool_calls": [call(name) for name in names]}
    calls = "".join(f"<tool_call>{name}</tool_call>" for name in names)
    thought = f"<think>{reasoning}</think>" if reasoning else ""
    for parts in SUBSETS:
        expected = [(thought, "reasoning"), (content, "text"), (calls, "tool_calls")]
        text = "".join(text for text, part in expected if part in parts)
        ends = ("tool_calls" if names else "text") in parts
        assert learnt(tokenizer, message, *parts) == text + ("<|im_end|>" if ends else "")


CALL = '<tool_call>\n{"name": "calculator", "arguments": {"expression": "1"}}\n</tool_call>'
BOTH = {"content": "so", "reasoning_content": "hm", "tool_calls": [call("calculator", expression="1")]}


@pytest.mark.parametrize(
    ("parts", "text"),
    [
        (("reasoning",), "hm"),
        (("text",), "<think>\n\n</think>\n\nso"),
        (("tool_calls",), f"\n{CALL}{END}"),
        (("text", "tool_calls"), f"<think>\n\n</think>\n\nso\n{CALL}{END}"),
        (("text", "reasoning", "tool_calls"), f"<think>\nhm\n</think>\n\nso\n{CALL}{END}"),
    ],
)
def test_marks_that_stand_without_reasoning_are_text(family: Family, parts: tuple[Part, ...], text: str) -> None:
    assert learnt(family("qwen3"), BOTH, *parts, tools=[CALCULATOR_SCHEMA]) == text


def test_reasoning_written_into_the_content_is_reasoning(family: Family, tokenizer: PreTrainedTokenizerBase) -> None:
    message = {"content": "<think>\nhm\n</think>\n\nso"}
    assert learnt(family("qwen3"), message, "reasoning") == "hm"
    assert learnt(tokenizer, message, "reasoning") == "<think>\nhm\n</think>\n\n"
    assert learnt(tokenizer, message, "text") == "so" + END


def test_reasoning_is_learnt_under_either_of_its_names(family: Family) -> None:
    text = learnt(family("qwen3"), {"content": "so", "reasoning": "hm"}, *ALL_PARTS)
    assert text == "<think>\nhm\n</think>\n\nso" + END


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("llama3", '{"name": "calculator", "parameters": {"expression": "1"}}<|eot_id|>'),
        ("mistral", '[TOOL_CALLS] [{"name": "calculator", "arguments": {"expression": "1"}, "id": "call00000"}]</s>'),
    ],
)
def test_a_message_that_is_a_call_is_learnt_as_one(family: Family, name: str, text: str) -> None:
    message = {"content": "", "tool_calls": [call("calculator", expression="1")]}
    assert learnt(family(name), message, "tool_calls", tools=[CALCULATOR_SCHEMA]) == text
    assert learnt(family(name), message, "reasoning", tools=[CALCULATOR_SCHEMA]) == ""


def test_a_token_astride_belongs_to_the_part_it_begins_in(family: Family) -> None:
    tokenizer = with_template(family, PLAIN.replace("<think>", "").replace("</think>", ""))
    # `the` is one token, of which reasoning says `th`.
    message = {"content": "e", "reasoning_content": "th"}
    assert learnt(tokenizer, message, "reasoning") == "the"
    assert learnt(tokenizer, message, "text") == END


def test_a_template_that_refuses_the_message_without_a_part_is_named(family: Family) -> None:
    refusal = "{% if m.role == 'assistant' and not m.tool_calls %}{{ raise_exception('call!') }}{% endif %}"
    tokenizer = with_template(family, PLAIN.replace("{{ m.content }}", refusal))
    with pytest.raises(TemplateError, match="call!"):
        learnt(tokenizer, {"content": "", "tool_calls": [call("f")]}, "text")
