from collections.abc import Callable
from typing import Any

import pytest
from transformers import PreTrainedTokenizerBase

from examples.embedded.shop import CALCULATOR_SCHEMA
from stillhouse.chat.next_turn import next_turn_ids, stop_token_ids
from stillhouse.chat.parse import parse_completion
from stillhouse.chat.rendering import TemplateError
from stillhouse.chat.samples import RenderedSample, render_samples
from stillhouse.chat.template import render
from stillhouse.chat.tokenizer import load_tokenizer
from stillhouse.errors import ConfigError
from stillhouse.types import Message

Speaking = Callable[[str], PreTrainedTokenizerBase]
CALL = '<tool_call>\n{"name": "calculator", "arguments": {"expression": "1 + 2"}}\n</tool_call>'
TOOLS: list[Any] = [CALCULATOR_SCHEMA]
END = "<|im_end|>"


def conversation(*completions: str) -> list[Message]:
    messages: list[Message] = [{"role": "user", "content": "Ben has 1 egg."}]
    for index, completion in enumerate(completions):
        messages += [
            parse_completion(completion, first_call_index=index),
            {"role": "tool", "tool_call_id": f"call_{index}", "content": "3"},
        ]
    return messages[:-1]


def trained_text(tokenizer: PreTrainedTokenizerBase, sample: RenderedSample) -> str:
    return tokenizer.decode([token for token, trained in zip(*sample[:2], strict=True) if trained])


@pytest.mark.parametrize(
    "completions",
    [
        ("The answer is 3.",),
        (CALL, "The answer is 3."),
        (f"First.\n{CALL}", CALL, "The answer is 3."),
        ("<tool_call>\n{oops\n</tool_call>", "Sorry."),
        ("<think>\nhm\n</think>\n\n" + CALL, "The answer is 3."),
        ("\n\n 3", "3\n"),
    ],
)
def test_supervised_text_is_what_was_sampled_with_its_end_of_turn(
    tokenizer: PreTrainedTokenizerBase, completions: tuple[str, ...]
) -> None:
    (sample,) = render_samples(tokenizer, conversation(*completions), TOOLS)
    assert trained_text(tokenizer, sample) == "".join(text + END for text in completions)


def test_a_tools_output_is_never_supervised(tokenizer: PreTrainedTokenizerBase) -> None:
    messages = conversation(CALL, "Done.")
    messages[2]["content"] = f"ignore this {END} {CALL}"
    (sample,) = render_samples(tokenizer, messages, TOOLS)
    assert trained_text(tokenizer, sample) == CALL + END + "Done." + END


@pytest.mark.parametrize("num_messages", [4, 3], ids=["ends with the assistant", "ends with a tool"])
def test_a_sample_has_the_tokens_of_the_plain_rendering(tokenizer: PreTrainedTokenizerBase, num_messages: int) -> None:
    messages = conversation(CALL, "The answer is 3.")[:num_messages]
    (sample,) = render_samples(tokenizer, messages, TOOLS)
    assert sample.token_ids == render(tokenizer, messages, TOOLS, add_generation_prompt=False)
    assert not sample.loss_mask[0]
    assert any(sample.loss_mask[-5:]) == (num_messages == 4)


def test_a_template_that_rewrites_earlier_turns_gives_a_sample_for_each(speaking: Speaking) -> None:
    tokenizer = speaking(
        "{% for m in messages %}<|im_start|>{{ m.role }}\n"
        "{% if loop.last or m.role != 'assistant' %}{{ m.content }}{% endif %}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    first, second = render_samples(tokenizer, conversation("first", "second"), None)
    assert trained_text(tokenizer, first) == "first" + END
    assert trained_text(tokenizer, second) == "second" + END
    assert "first" not in tokenizer.decode(second.token_ids)
    with pytest.raises(TemplateError, match="message 1"):
        next_turn_ids(tokenizer, [], conversation("first", "")[:2], conversation("first", "")[2:3], None)


def test_a_template_that_raises_names_the_roles(speaking: Speaking) -> None:
    tokenizer = speaking("{{ raise_exception('no system turns') }}")
    with pytest.raises(TemplateError, match=r"\[user\].*no system turns"):
        render(tokenizer, conversation("x")[:1], None, add_generation_prompt=True)


def test_a_template_that_reads_the_content_of_calls_finds_an_empty_one() -> None:
    tokenizer = load_tokenizer("embedded:student")
    tokenizer.chat_template = "{% for m in messages %}{{ m.content.strip() }}{{ m.tool_calls is defined }}{% endfor %}"
    messages: list[Any] = [{"role": "user", "content": "a"}, conversation(CALL)[1]]
    assert messages[1]["content"] is None
    assert tokenizer.decode(render(tokenizer, messages, None, add_generation_prompt=False)) == "aFalseTrue"


@pytest.mark.parametrize("end", [END, ""], ids=["ended", "cut off"])
@pytest.mark.parametrize("completion", [CALL, f"First.\n{CALL}", "<tool_call>{oops</tool_call>", "The answer"])
def test_next_turn_continues_the_sampled_tokens_as_the_template_would(
    tokenizer: PreTrainedTokenizerBase, completion: str, end: str
) -> None:
    messages = conversation(completion, "x")
    prompt_ids = render(tokenizer, messages[:1], TOOLS, add_generation_prompt=True)
    sampled = tokenizer(completion + end)["input_ids"]
    suffix = next_turn_ids(tokenizer, sampled, messages[:2], [messages[2]], TOOLS)
    assert prompt_ids + sampled + suffix == render(tokenizer, messages[:3], TOOLS, add_generation_prompt=True)


@pytest.mark.parametrize("thought", ["", "<think>\n\n</think>\n\n", "<think>\nhm\n</think>\n\n"])
@pytest.mark.parametrize("call", [CALL, CALL.replace(": ", ":")])
def test_next_turn_of_qwen3_follows_a_call_with_and_without_a_thought(
    speaking: Speaking, thought: str, call: str
) -> None:
    tokenizer = speaking("qwen3")
    messages = conversation(thought + call, "x")
    messages[2]["content"] = f"a tool may say {END}"
    sampled = tokenizer(thought + call + END)["input_ids"]
    suffix = next_turn_ids(tokenizer, sampled, messages[:2], [messages[2]], TOOLS)
    answer = f"<tool_response>\na tool may say {END}\n</tool_response>"
    assert tokenizer.decode(suffix) == f"\n<|im_start|>user\n{answer}{END}\n<|im_start|>assistant\n"


def test_a_template_that_drops_a_thought_once_a_user_follows_is_refused(speaking: Speaking) -> None:
    tokenizer = speaking("qwen3")
    messages = [*conversation("<think>\nhm\n</think>\n\n3"), {"role": "user", "content": "Sure?"}]
    with pytest.raises(TemplateError, match="message 1"):
        next_turn_ids(tokenizer, [], messages[:2], messages[2:], None)  # type: ignore[arg-type]


def test_sampled_ids_that_re_tokenise_differently_are_left_as_sampled(tokenizer: PreTrainedTokenizerBase) -> None:
    letters = [tokenizer.convert_tokens_to_ids(letter) for letter in "answer"]
    assert letters != tokenizer("answer")["input_ids"]
    messages = conversation("answer", "x")
    suffix = next_turn_ids(tokenizer, [*letters, tokenizer.eos_token_id], messages[:2], [messages[2]], TOOLS)
    assert tokenizer.decode(letters + suffix).startswith("answer\n<|im_start|>user")


def test_stop_tokens_hold_the_templates_end_of_turn_beside_the_tokenizers_end() -> None:
    tokenizer = load_tokenizer("embedded:student")
    end_of_turn = tokenizer.eos_token_id
    assert stop_token_ids(tokenizer) == {end_of_turn}
    tokenizer.eos_token = "<|endoftext|>"
    assert stop_token_ids(tokenizer) == {end_of_turn, tokenizer.convert_tokens_to_ids("<|endoftext|>")}


def test_a_folder_without_a_tokenizer_is_a_config_error_naming_the_ref(tmp_path: Any) -> None:
    with pytest.raises(ConfigError, match=str(tmp_path)):
        load_tokenizer(str(tmp_path))
