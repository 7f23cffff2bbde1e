"""Templates in the forms of Qwen3, Llama 3, Gemma and Mistral: what each message says, where it was sampled."""

import copy
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerBase

from examples.embedded.shop import CALCULATOR_SCHEMA
from stillhouse.chat.samples import RenderedSample, render_samples

Family = Callable[[str], PreTrainedTokenizerBase]
FAMILIES = {
    "qwen3": ("<|im_end|>", {"system": True, "tools": True, "reasoning": True}),
    "llama3": ("<|eot_id|>", {"system": True, "tools": True, "reasoning": False}),
    "gemma": ("<end_of_turn>", {"system": False, "tools": False, "reasoning": False}),
    "mistral": ("</s>", {"system": True, "tools": True, "reasoning": False}),
}
"""End of a turn, and what the template renders."""
# The letter that stands for a space in sentencepiece is no text there, and markers are no text anywhere.
TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\u2581<>[]"), min_size=1, max_size=12).map(
    lambda text: f"{text}." if not text.strip() else text
) | st.sampled_from(["the answer", " a \n", "\n\nan\n", "\U0001f600\U0001f600", "caf\u00e9 10"])
REASONING = st.none() | TEXTS


@st.composite
def conversations(draw: st.DrawFn, *, system: bool, tools: bool, reasoning: bool) -> list[Any]:
    messages: list[Any] = [{"role": "system", "content": draw(TEXTS)}] if system and draw(st.booleans()) else []
    for _ in range(draw(st.integers(1, 3))):
        messages.append({"role": "user", "content": draw(TEXTS)})
        for number in range(draw(st.integers(0, 2)) if tools else 0):
            function = {"name": "calculator", "arguments": json.dumps({"expression": draw(TEXTS)})}
            call = {"id": f"call{number:05}", "type": "function", "function": function}
            messages.append(answer(draw, {"content": "", "tool_calls": [call]}, reasoning))
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": draw(TEXTS)})
        messages.append(answer(draw, {"content": draw(TEXTS)}, reasoning))
    return messages


def answer(draw: st.DrawFn, message: Any, reasoning: bool) -> Any:
    thought = draw(REASONING) if reasoning else None
    return {"role": "assistant", **message, **({"reasoning_content": thought} if thought else {})}


def rendered(tokenizer: Any, messages: list[Any], tools: Any, prompt: bool) -> str:
    messages = copy.deepcopy(messages)
    for function in (call["function"] for message in messages for call in message.get("tool_calls", ())):
        function["arguments"] = json.loads(function["arguments"])
    return tokenizer.apply_chat_template(messages, tools=tools, add_generation_prompt=prompt, tokenize=False)


def runs(samples: list[RenderedSample]) -> Iterator[tuple[RenderedSample, int, int]]:
    """Each stretch of supervised tokens, in order."""
    for sample in samples:
        end = 0
        while True in sample.loss_mask[end:]:
            start = sample.loss_mask.index(True, end)
            end = sample.loss_mask.index(False, start) if False in sample.loss_mask[start:] else len(sample.loss_mask)
            yield sample, start, end


def check(tokenizer: Any, end_of_turn: str, messages: list[Any], tools: Any) -> None:
    samples = render_samples(tokenizer, messages, tools)
    assistant = [index for index, message in enumerate(messages) if message["role"] == "assistant"]
    for index, (sample, start, end) in zip(assistant, runs(samples), strict=True):
        before = rendered(tokenizer, messages[:index], tools, True)
        after = rendered(tokenizer, messages[: index + 1], tools, False)
        assert sample.token_ids[:start] == tokenizer(before, add_special_tokens=False)["input_ids"]
        ids, prompt_ids = sample.token_ids[:end], sample.token_ids[:start]
        supervised = tokenizer.decode(ids)[len(tokenizer.decode(prompt_ids)) :]
        text = after[len(before) :]
        assert supervised == text[: text.rindex(end_of_turn) + len(end_of_turn)]


@pytest.mark.parametrize("name", FAMILIES)
@settings(max_examples=40)
@given(data=st.data())
def test_each_turn_is_learnt_as_it_was_sampled(family: Family, name: str, data: st.DataObject) -> None:
    end_of_turn, features = FAMILIES[name]
    messages = data.draw(conversations(**features))
    with_tools = features["tools"] and data.draw(st.booleans())
    check(family(name), end_of_turn, messages, [CALCULATOR_SCHEMA] if with_tools else None)


TWO_QUESTIONS: list[Any] = [
    {"role": "system", "content": "be kind"},
    {"role": "user", "content": "one"},
    {"role": "assistant", "content": "1", "reasoning_content": "hm"},
    {"role": "user", "content": "two"},
    {"role": "assistant", "content": "2", "reasoning_content": "hm"},
]


@pytest.mark.parametrize(("name", "num_samples"), [("qwen3", 2), ("llama3", 1), ("mistral", 2)])
def test_a_sample_ends_where_history_is_rendered_another_way(family: Family, name: str, num_samples: int) -> None:
    tokenizer = family(name)
    samples = render_samples(tokenizer, TWO_QUESTIONS, None)
    assert len(samples) == num_samples
    texts = [tokenizer.decode(sample.token_ids) for sample in samples]
    assert ("hm" in texts[0]) == (name == "qwen3")
    assert texts[-1].count("hm") == (name == "qwen3")


def test_a_loop_of_calls_is_one_sample_where_thoughts_stay_until_the_next_question(family: Family) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "calculator", "arguments": "{}"}}
    messages: list[Any] = [
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "", "reasoning_content": "hm", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "3"},
        {"role": "assistant", "content": "3", "reasoning_content": "so"},
    ]
    (sample,) = render_samples(family("qwen3"), messages, [CALCULATOR_SCHEMA])
    assert [start for _, start, _ in runs([sample])] == [
        len(family("qwen3")(rendered(family("qwen3"), messages[:index], [CALCULATOR_SCHEMA], True))["input_ids"])
        for index in (1, 3)
    ]
