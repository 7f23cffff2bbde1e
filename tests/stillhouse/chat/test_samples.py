import copy
import json
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers.pre_tokenizers import Metaspace
from transformers import PreTrainedTokenizerBase

from stillhouse.chat.rendering import TemplateError
from stillhouse.chat.samples import render_samples, render_spans, tokenise_spans
from stillhouse.chat.tokenizer import load_tokenizer
from stillhouse.embedded.shop import CALCULATOR_SCHEMA
from stillhouse.types import Message

TEXTS = st.text(st.characters(codec="utf-8"), max_size=12) | st.sampled_from(
    ["a b", "<|im_end|>", "<think>\nhm\n</think>\n\nyes", "caf\u00e9 \U0001f600", "\n\n3\n"]
)
CALLS = st.builds(
    lambda name, arguments: {"id": "c", "type": "function", "function": {"name": name, "arguments": arguments}},
    st.sampled_from(["calculator", "f", "malformed_tool_call"]),
    st.dictionaries(TEXTS, TEXTS | st.integers() | st.none(), max_size=2).map(json.dumps) | TEXTS,
)
ASSISTANT = st.builds(
    lambda content, reasoning, calls: {
        "role": "assistant", "content": content,
        **({"reasoning_content": reasoning} if reasoning else {}), **({"tool_calls": calls} if calls else {}),
    },
    st.none() | TEXTS, st.none() | TEXTS, st.lists(CALLS, max_size=2),
)  # fmt: skip
OTHERS = st.builds(lambda role, content: {"role": role, "content": content}, st.sampled_from(["user", "tool"]), TEXTS)
CONVERSATIONS = st.lists(ASSISTANT | OTHERS, min_size=1, max_size=6)
# Earlier answers vanish, as reasoning does in some templates.
REWRITING = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if loop.last or m.role != 'assistant' %}{{ m.content }}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TEMPLATES = [
    None,
    REWRITING,
    "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tools') }}{% endif %}{{ m.content }}"
    "<|im_end|>{% endfor %}",
    "{{ messages[0].content }}{% for m in messages %}[{{ m.role }}] {{ m.content }}{% endfor %}",
]  # fmt: skip


def one_by_one(tokenizer: PreTrainedTokenizerBase, messages: list[Message]) -> Any:
    """The plain way: every start rendered by itself, every span tokenised by itself, the whole tokenised again."""

    def text(part: list[Message], prompt: bool) -> str:
        shown = [spelt(message) for message in part]
        try:
            return tokenizer.apply_chat_template(
                shown, tools=[CALCULATOR_SCHEMA], add_generation_prompt=prompt, tokenize=False
            )
        except Exception as error:
            raise TemplateError(str(error)) from error

    def rest(start: str, whole: str) -> list[int]:
        if not whole.startswith(start):
            raise TemplateError("not prefix preserving")
        return tokenizer(whole[len(start) :], add_special_tokens=False)["input_ids"]

    samples: list[tuple[list[int], list[bool]]] = []
    done = None
    special = {place for place, token in tokenizer.added_tokens_decoder.items() if token.special}
    for index, message in enumerate(messages):
        if message["role"] == "assistant":
            before, after = text(messages[:index], True), text(messages[: index + 1], False)
            if done is None or not before.startswith(done):
                samples.append(([], []))
                done = ""
            prompt, span = rest(done, before), rest(before, after)
            names = [call["function"]["name"] for call in message.get("tool_calls") or ()]
            calls = [name for name in names if name != "malformed_tool_call"]
            written = after[len(before) :].removeprefix(spelt(message).get("content") or "")
            if any(written.count(name) < calls.count(name) for name in calls):
                raise TemplateError("a call is not written")
            ends = [place for place, token in enumerate(span) if token in special]
            if not ends or tokenizer.decode(span[ends[-1] + 1 :]).strip():
                raise TemplateError("no end of turn")
            ids, mask = samples[-1]
            ids += prompt + span
            mask += [False] * len(prompt) + [place <= ends[-1] for place in range(len(span))]
            done = after
    full = text(messages, False)
    if done is None:
        return [(rest("", full), [False] * len(rest("", full)))]
    if full.startswith(done):
        ids, mask = samples[-1]
        ids += rest(done, full)
        mask += [False] * len(rest(done, full))
    return samples


def spelt(message: Any) -> dict[str, Any]:
    """The message with arguments that are objects as objects, malformed calls in its text, and no key of None."""
    pieces, calls = [message.get("content") or ""], []
    for call in message.get("tool_calls") or ():
        name, arguments = call["function"]["name"], call["function"]["arguments"]
        if name == "malformed_tool_call":
            pieces.append(arguments)
            continue
        try:
            value = json.loads(arguments)
        except ValueError:
            value = None
        calls.append({**call, "function": {"name": name, "arguments": value if isinstance(value, dict) else arguments}})
    shown = dict(message)
    if message.get("tool_calls"):
        shown |= {"content": "\n".join(filter(None, pieces)) or None, "tool_calls": calls or None}
    return {name: value for name, value in shown.items() if value is not None}


@pytest.fixture(scope="module", params=TEMPLATES, ids=["student", "rewriting", "refusing", "no end of turn"])
def any_tokenizer(request: pytest.FixtureRequest, speaking: Any) -> PreTrainedTokenizerBase:
    return speaking(request.param) if request.param else load_tokenizer("embedded:student")


MALFORMED = [{"id": "c", "type": "function", "function": {"name": "malformed_tool_call", "arguments": "{}"}}]
F_TWICE = [
    {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}},
    {"id": "c", "type": "function", "function": {"name": "malformed_tool_call", "arguments": "[f"}},
]
"""A call, and its name in the text of another that cannot be parsed."""


@settings(max_examples=25)
@given(conversations=st.lists(CONVERSATIONS, min_size=1, max_size=3))
@example(conversations=[[{"role": "assistant", "content": "<|im_end|>", "tool_calls": MALFORMED}]])
@example(
    conversations=[[{"role": "user", "content": ""}, {"role": "assistant", "content": None, "tool_calls": F_TWICE}]]
)
def test_many_conversations_at_once_give_what_each_gives_one_by_one(
    any_tokenizer: PreTrainedTokenizerBase, conversations: list[list[Message]]
) -> None:
    expected: list[Any] = []
    spans = []
    for messages in conversations:
        try:
            expected += one_by_one(any_tokenizer, messages)
        except TemplateError as error:
            if "not prefix preserving" not in str(error):  # A prompt that is rendered otherwise may be learnt behind.
                with pytest.raises(TemplateError):
                    render_samples(any_tokenizer, messages, [CALCULATOR_SCHEMA])
            continue
        spans += render_spans(any_tokenizer, messages, [CALCULATOR_SCHEMA])
    samples = tokenise_spans(any_tokenizer, spans)
    assert [sample if isinstance(sample, TemplateError) else sample[:2] for sample in samples] == expected


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
    with pytest.raises(TemplateError, match="not in the OpenAI form"):
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
    with pytest.raises(TemplateError, match="a token stands astride the end of 'the 10:1'"):
        render_samples(tokenizer, QUESTION, None)


def test_a_message_of_the_assistants_alone_has_no_prompt_to_learn_it_from(tokenizer: PreTrainedTokenizerBase) -> None:
    with pytest.raises(TemplateError, match="it has no message"):
        render_samples(tokenizer, QUESTION[1:], None)
