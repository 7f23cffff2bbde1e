import copy
from typing import Any

import pytest
from tokenizers.pre_tokenizers import Metaspace
from transformers import PreTrainedTokenizerBase

from examples.embedded.shop import CALCULATOR_SCHEMA
from stillhouse.chat.rendering import TemplateError
from stillhouse.chat.samples import render_all_spans, render_samples, render_spans, tokenise_spans
from stillhouse.types import Message


@pytest.mark.parametrize("name", ["qwen3", "llama3", "mistral"])
def test_many_conversations_at_once_give_what_each_gives_alone(family: Any, name: str) -> None:
    tokenizer = family(name)
    calls = [{"id": "call00000", "type": "function", "function": {"name": "calculator", "arguments": "{}"}}]
    question: Message = {"role": "user", "content": "q"}
    called: Message = {"role": "assistant", "content": "", "tool_calls": calls}  # type: ignore[typeddict-item]
    result: Message = {"role": "tool", "tool_call_id": "call00000", "content": "3"}
    conversations = [QUESTION, [question, called, result, QUESTION[1]], [*QUESTION, *QUESTION], [question]]
    alone = [render_spans(tokenizer, messages, [CALCULATOR_SCHEMA]) for messages in conversations]
    at_once = render_all_spans(tokenizer, [(messages, [CALCULATOR_SCHEMA]) for messages in conversations])
    assert at_once == alone
    samples = [sample for spans in alone for sample in spans]
    assert tokenise_spans(tokenizer, samples) == [tokenise_spans(tokenizer, [spans])[0] for spans in samples]


def test_spans_name_the_message_that_says_them(tokenizer: PreTrainedTokenizerBase) -> None:
    messages: list[Message] = [
        {"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}, {"role": "user", "content": "r"},
        {"role": "assistant", "content": "b"}, {"role": "user", "content": "s"},
    ]  # fmt: skip
    (spans,) = render_spans(tokenizer, messages, None)
    assert [(span.message, span.text.split("<|im_end|>")[0]) for span in spans if span.message] == [(1, "a"), (3, "b")]
    assert spans[-1].text.endswith("s<|im_end|>\n")
    whole = tokenizer.apply_chat_template(messages, tokenize=False)  # type: ignore[arg-type]
    assert "".join(span.text for span in spans) == whole


@pytest.mark.parametrize("call", [{"id": "c"}, {"id": "c", "function": {"name": "f"}}, "f()"])
def test_a_call_that_is_not_in_the_openai_form_is_a_problem_of_its_conversation(
    call: Any, tokenizer: PreTrainedTokenizerBase
) -> None:
    messages: list[Any] = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "", "tool_calls": [call]}]
    with pytest.raises(TemplateError, match="OpenAI form"):
        render_spans(tokenizer, messages, None)


def test_a_template_that_takes_back_its_own_prompt_is_refused_with_the_message_index(speaking: Any) -> None:
    tokenizer = speaking("{{ add_generation_prompt }}{% for m in messages %}{{ m.content }}<|im_end|>{% endfor %}")
    with pytest.raises(TemplateError, match="message 1"):
        render_samples(tokenizer, QUESTION, None)


QUESTION: list[Message] = [{"role": "user", "content": "the 10"}, {"role": "assistant", "content": "the 10"}]


def with_space_before(family: Any, template: str) -> Any:
    """A tokenizer that writes a space before every text and every piece behind a special token."""
    tokenizer = copy.deepcopy(family("mistral"))
    tokenizer.backend_tokenizer.pre_tokenizer = Metaspace("\u2581", prepend_scheme="always", split=False)
    tokenizer.chat_template = template
    return tokenizer


def test_a_tokenizer_that_begins_texts_with_a_space_is_followed_in_the_whole_text(family: Any) -> None:
    tokenizer = with_space_before(
        family,
        "{% for m in messages %}{% if m.role == 'user' %}[INST]{{ m.content }}:"
        "{% else %} {{ m.content }}</s>{% endif %}{% endfor %}",
    )
    (sample,) = render_samples(tokenizer, QUESTION, None)
    assert sample.token_ids == tokenizer("[INST]the 10: the 10</s>", add_special_tokens=False)["input_ids"]
    supervised = [token for token, trained in zip(*sample[:2], strict=True) if trained]
    assert tokenizer.convert_ids_to_tokens(supervised) == ["\u2581the", "\u2581", "10", "</s>"]


def test_a_token_across_the_border_of_such_a_text_is_refused(family: Any) -> None:
    tokenizer = with_space_before(
        family,
        "{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}:1"
        "{% else %}0{{ m.content }}</s>{% endif %}{% endfor %}",
    )
    with pytest.raises(TemplateError, match="'the 10:1'"):
        render_samples(tokenizer, QUESTION, None)


def test_a_message_of_the_assistants_alone_has_no_prompt_to_learn_it_from(tokenizer: PreTrainedTokenizerBase) -> None:
    with pytest.raises(TemplateError, match="no message"):
        render_samples(tokenizer, QUESTION[1:], None)
