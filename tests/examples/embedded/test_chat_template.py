import itertools
import json
import random
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from examples.embedded.shop import CALCULATOR_SCHEMA, conversation, draw_stories

TOOLS = [CALCULATOR_SCHEMA]
SYSTEM = {"role": "system", "content": "Be exact."}


def call(arguments: Any, name: str = "calculator") -> dict[str, Any]:
    return {"id": "c", "type": "function", "function": {"name": name, "arguments": arguments}}


def gold(num: int = 20) -> list[list[dict[str, Any]]]:
    return [conversation(story) for story in itertools.islice(draw_stories(random.Random(2), reserved=True), num)]


def unusual() -> list[list[dict[str, Any]]]:
    """Reasoning, text before a call, two calls in a turn, a system turn, a broken-looking result, empty text."""
    user = {"role": "user", "content": " 2 apples\n\nand 3?\n"}
    two = {"role": "assistant", "content": "Let me see.", "tool_calls": [call('{"expression": "2 + 3"}')] * 2}
    answers = [{"role": "tool", "tool_call_id": "c", "content": text} for text in ("5", "Error: no\n{x}")]
    thinking = {"role": "assistant", "content": "\n 5 it is.\n", "reasoning_content": "2 and 3"}
    thinking_call = {"role": "assistant", "content": "", "reasoning_content": "a", "tool_calls": [call({})]}
    return [
        [SYSTEM, user, two, *answers, thinking, user, thinking, user, {"role": "assistant", "content": ""}],
        [user, thinking_call, answers[0], two, *answers, {"role": "assistant", "content": "It is 5."}],
    ]


def ids_of(tokenizer: PreTrainedTokenizerFast, text: str) -> list[int]:
    return tokenizer(text, add_special_tokens=False)["input_ids"]


@pytest.mark.parametrize("tools", [TOOLS, None], ids=["tools", "no tools"])
@pytest.mark.parametrize("messages", [*gold(5), *unusual()])
def test_each_generation_prompt_and_its_completion_begin_the_longer_conversation(
    messages: list[dict[str, Any]], tools: list[Any] | None, tokenizer: PreTrainedTokenizerFast
):
    all_ids = ids_of(tokenizer, tokenizer.apply_chat_template(messages, tools=tools, tokenize=False))
    turns = [index for index, message in enumerate(messages) if message["role"] == "assistant"]
    assert turns
    for index in turns:
        before = tokenizer.apply_chat_template(
            messages[:index], tools=tools, tokenize=False, add_generation_prompt=True
        )
        after = tokenizer.apply_chat_template(messages[: index + 1], tools=tools, tokenize=False)
        completion = after.removeprefix(before).removesuffix("\n")
        assert completion.endswith("<|im_end|>")
        sampled_ids = ids_of(tokenizer, before) + ids_of(tokenizer, completion)
        assert all_ids[: len(sampled_ids)] == sampled_ids


@pytest.mark.parametrize(
    "arguments", [{"expression": 'a "quoted\\" : , { \t text'}, {"a": [1, 2.5, {"b": None}], "c": True}, {}]
)
@pytest.mark.parametrize("separators", [(", ", ": "), (",", ":"), (" , ", "\n: ")])
def test_arguments_as_text_or_mapping_render_alike(
    arguments: dict[str, Any], separators: tuple[str, str], tokenizer: PreTrainedTokenizerFast
):
    def render(value: Any) -> str:
        turn = {"role": "assistant", "content": None, "tool_calls": [call(value)]}
        return tokenizer.apply_chat_template([{"role": "user", "content": "?"}, turn], tokenize=False)

    assert render(json.dumps(arguments, separators=separators)) == render(arguments)
    assert f'{{"name": "calculator", "arguments": {json.dumps(arguments)}}}' in render(arguments)


def test_arguments_that_are_no_json_object_are_left_as_the_model_wrote_them(tokenizer: PreTrainedTokenizerFast):
    turn = {"role": "assistant", "content": None, "tool_calls": [call("412 + 77, twice")]}
    assert '"arguments": 412 + 77, twice}' in tokenizer.apply_chat_template([turn], tokenize=False)


@pytest.mark.parametrize("messages", [*gold(20), *unusual()])
def test_the_generation_mask_covers_assistant_turns_and_nothing_else(
    messages: list[dict[str, Any]], tokenizer: PreTrainedTokenizerFast
):
    encoded = tokenizer.apply_chat_template(messages, tools=TOOLS, return_dict=True, return_assistant_tokens_mask=True)
    text = tokenizer.apply_chat_template(messages, tools=TOOLS, tokenize=False)
    expected = [piece.partition("<|im_end|>")[0] + "<|im_end|>" for piece in text.split("<|im_start|>assistant\n")[1:]]
    spans = itertools.groupby(
        zip(encoded["input_ids"], encoded["assistant_masks"], strict=True), key=lambda pair: pair[1]
    )
    masked = [tokenizer.decode([token for token, _ in pairs]) for is_on, pairs in spans if is_on]
    assert masked == expected
    assert len(masked) == sum(message["role"] == "assistant" for message in messages)


def test_results_of_one_turn_share_one_user_turn(tokenizer: PreTrainedTokenizerFast):
    text = tokenizer.apply_chat_template(unusual()[0], tools=TOOLS, tokenize=False)
    assert (
        "<|im_start|>user\n<tool_response>\n5\n</tool_response>\n<tool_response>\nError: no\n{x}\n</tool_response>"
        "<|im_end|>\n<|im_start|>assistant\n"
    ) in text


def test_tools_are_one_short_line_each_after_the_system_text(tokenizer: PreTrainedTokenizerFast):
    other = {"name": "find", "parameters": {"type": "object", "properties": {"query": {}, "limit": {}}}}
    messages = [SYSTEM, {"role": "user", "content": "?"}]
    text = tokenizer.apply_chat_template(
        messages, tools=[*TOOLS, {"type": "function", "function": other}], tokenize=False
    )
    assert text == (
        "<|im_start|>system\nBe exact.\n\nTools:\ncalculator(expression)\nfind(query, limit)<|im_end|>\n"
        "<|im_start|>user\n?<|im_end|>\n"
    )


def test_content_in_parts_renders_like_the_joined_text(tokenizer: PreTrainedTokenizerFast):
    [question, *rest] = gold(1)[0]
    parts = [{"type": "text", "text": text} for text in (question["content"][:9], question["content"][9:])]
    parted, joined = (
        tokenizer.apply_chat_template([first, *rest], tokenize=False)
        for first in ({**question, "content": parts}, question)
    )
    assert parted == joined
