"""Prompts as a form's own runtime renders and splits them, beside the student's."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from stillhouse.chat.message_form import reads_literal_calls, template_message
from stillhouse.chat.refs import gguf_in
from stillhouse.chat.template import first_difference, render_text
from stillhouse.chat.tokenizer import encode, load_tokenizer
from stillhouse.publishing.gguf_header import header_of
from stillhouse.types import JsonObject, Message, Tools, Trajectory

_AROUND = 30
Render = Callable[[list[JsonObject], Tools], tuple[str, list[int]]]
"""(messages, tools) -> text and tokens of the prompt that asks for the next turn."""


class Differences(NamedTuple):
    """Prompts that a form renders otherwise than the student."""

    number: int
    texts: list[str]
    """How texts differ, and for which message."""
    tokens: list[str]


def compare_prompts(student: Path, form: Path, trajectories: Iterable[Trajectory]) -> Differences:
    """Render the prompt of every turn of the trajectories both ways."""
    tokenizer, render = load_tokenizer(str(student)), _renderer(form)
    found = Differences(0, [], [])
    for trajectory in trajectories:
        for end in [at for at, message in enumerate(trajectory.messages) if message["role"] == "assistant"]:
            messages, tools = trajectory.messages[:end], trajectory.tools
            found = found._replace(number=found.number + 1)
            text = render_text(tokenizer, messages, tools, add_generation_prompt=True)
            try:
                seen, ids = render(_read(tokenizer, messages), tools)
            except Exception as error:  # a template may raise anything
                found.texts.append(f"refused with {type(error).__name__}: {error}")
                continue
            if seen != text:
                place = first_difference(text, seen)
                expected, saw = (one[max(0, place - _AROUND) : place + _AROUND] for one in (text, seen))
                found.texts.append(f"at character {place} expected {expected!r}, saw {saw!r}")
            elif (expected_ids := encode(tokenizer, text)) != ids:
                pairs = enumerate(zip(expected_ids, ids, strict=False))
                at = next((at for at, (a, b) in pairs if a != b), min(len(expected_ids), len(ids)))
                found.tokens.append(f"at token {at} expected {expected_ids[at : at + 4]}, saw {ids[at : at + 4]}")
    return found


def _read(tokenizer: Any, messages: Sequence[Message]) -> list[JsonObject]:
    is_literal = any(message.get("tool_calls") for message in messages) and reads_literal_calls(tokenizer)
    return [template_message(message, is_literal=is_literal) for message in messages]


def _renderer(form: Path) -> Render:
    gguf = gguf_in(form)
    return _by_transformers(form) if gguf is None else _by_llama_cpp(gguf)


def _by_transformers(form: Path) -> Render:
    tokenizer = load_tokenizer(str(form))

    def render(messages: list[JsonObject], tools: Tools) -> tuple[str, list[int]]:
        text = tokenizer.apply_chat_template(messages, tools=tools or None, add_generation_prompt=True, tokenize=False)
        return text, tokenizer(text, add_special_tokens=False)["input_ids"]

    return render


def _by_llama_cpp(path: Path) -> Render:
    header = header_of(path)
    from llama_cpp.llama_chat_format import Jinja2ChatFormatter

    api, tokens = header.api, header.value("tokenizer.ggml.tokens")
    ids = (header.value(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "bos"))
    eos, bos = ("" if token is None else tokens[token] for token in ids)
    formatter = Jinja2ChatFormatter(header.value("tokenizer.chat_template") or "", eos, bos)

    def render(messages: list[JsonObject], tools: Tools) -> tuple[str, list[int]]:
        text = formatter(messages=messages, tools=tools or None).prompt
        # As llama-server does (common/chat.cpp): a first token that the vocabulary adds is not written twice.
        data = text.removeprefix(bos if api.llama_vocab_get_add_bos(header.vocabulary) else "").encode()
        found = (api.llama_token * (len(data) + 2))()
        number = api.llama_tokenize(header.vocabulary, data, len(data), found, len(found), True, True)
        return text, list(found[:number])

    return render
