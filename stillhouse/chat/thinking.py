"""Thinking blocks: how templates open and close them, and which of their variables turns thinking on."""

import re
from copy import copy
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

from stillhouse.chat.rendering import TemplateError
from stillhouse.chat.template import render_text
from stillhouse.chat.template_defaults import end_of_defaults, names_in

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

CLOSING: Final = {"<think>": "</think>", "<|channel>thought": "<channel|>", "<|START_THINKING|>": "<|END_THINKING|>"}
"""Tags of thinking blocks by the tag that opens them (most families; Gemma 4; Command R7B)."""
_OPEN: Final = rf"(?P<open>{'|'.join(map(re.escape, CLOSING))})(?P<space>\s*)"
_CLOSE: Final = rf"(?P<close>{'|'.join(map(re.escape, CLOSING.values()))})"
BLOCK: Final = re.compile(rf"{_OPEN}{_CLOSE}?\s*")
"""A block without reasoning, closed or not."""
_EMPTY_BLOCK: Final = re.compile(rf"{_OPEN}{_CLOSE}(?P<after>\s*)")
_EMPTY_BLOCK_AT_END: Final = re.compile(rf"{_EMPTY_BLOCK.pattern}\Z")
_OPENED_AT_END: Final = re.compile(rf"{_OPEN}\Z")


class _Switch(NamedTuple):
    """A variable of templates that turns thinking on, with the values as Jinja writes them."""

    name: str
    on: str = "true"
    off: str = "false"


_SWITCHES: Final = (
    *(_Switch("thinking"), _Switch("enable_thinking")),
    _Switch("reasoning_effort", '"high"', '"no_think"'),
)


def closing_after(block: re.Match[str]) -> str:
    """Return what closes an opened block as in DeepSeek-R1: with an empty line where the opening tag ends its line."""
    closing = CLOSING[block["open"]]
    return f"\n{closing}\n\n" if "\n" in block["space"] else closing


def is_closed(prompt: str) -> bool:
    """Return whether a generation prompt ends with an empty thinking block."""
    return _EMPTY_BLOCK_AT_END.search(prompt) is not None


def opening_of(prompt: str) -> str:
    """Return what opens the thinking block at the end of a generation prompt; empty where none is open."""
    opened = _OPENED_AT_END.search(prompt)
    return "" if opened is None else opened[0]


def with_left_out_reasoning(tokenizer: "PreTrainedTokenizerBase", reasoning: str, before: str, text: str) -> str:
    """Return a turn with the reasoning that the template leaves out of it, where the prompt has thinking on.

    `before` ends with the generation prompt, `text` is what the template writes after it. The reasoning goes into the
    block that the prompt opens (DeepSeek-V3.1), into the empty one that the template writes (Kimi K2), or into the one
    that it writes into the prompt once thinking is off (Gemma 4).
    """
    if opened := _OPENED_AT_END.search(before):
        closing = CLOSING[opened["open"]]
        if closing not in text:
            return reasoning + closing_after(opened) + text
        return reasoning + text if reasoning.strip() not in text and text.lstrip().startswith(closing) else text
    if not reasoning or reasoning.strip() in text:
        return text
    if block := _EMPTY_BLOCK.match(text):
        return _filled(block, reasoning) + text[block.end() :]
    left_out = _left_out_block(tokenizer, str(tokenizer.get_chat_template()))
    return _filled(left_out, reasoning) + text if left_out is not None else text


def closed_block_error(tokenizer: "PreTrainedTokenizerBase", index: int) -> TemplateError:
    """Return the error of a message with reasoning after a generation prompt that has closed its thinking block."""
    switch = _switch_of(str(tokenizer.get_chat_template()))
    remedy = f" (student.chat_template_kwargs: {{{switch.name}: {switch.on}}})" if switch is not None else ""
    return TemplateError(
        f"the generation prompt closes the thinking block before message {index}, which has reasoning: "
        f"turn thinking on{remedy}, or drop the reasoning"
    )


def _filled(block: re.Match[str], reasoning: str) -> str:
    line_break = "\n" if "\n" in block["space"] else ""
    return f"{block['open']}{line_break}{reasoning}{line_break}{block['close']}{block['after']}"


@lru_cache(maxsize=64)
def _left_out_block(tokenizer: "PreTrainedTokenizerBase", template: str) -> re.Match[str] | None:
    """Return the empty block that ends the prompt of `template`, the tokenizer's, only when thinking is off."""
    switch = _switch_of(template)
    if switch is None:
        return None
    switched = copy(tokenizer)
    end = end_of_defaults(template)
    switched.chat_template = f"{template[:end]}{{%- set {switch.name} = {switch.off} -%}}{template[end:]}"
    try:
        prompts = [
            render_text(variant, [{"role": "user", "content": "a"}], None, add_generation_prompt=True)
            for variant in (tokenizer, switched)
        ]
    except TemplateError:
        return None
    return None if is_closed(prompts[0]) else _EMPTY_BLOCK_AT_END.search(prompts[1])


def _switch_of(template: str) -> _Switch | None:
    """Return the first of the variables that the template reads."""
    names = names_in(template)
    return next((switch for switch in _SWITCHES if switch.name in names), None)
