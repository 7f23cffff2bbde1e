"""What a model writes after the generation prompt so that it has written a message.

With most templates that is the message's rendering after the prompt's. Those of reasoning models open a thinking block
in the generation prompt, or open and close it, and leave it out of the history (DeepSeek-R1-Distill, QwQ, Gemma 4,
MiniMax-M2): there no rendering begins with the prompt, and the text is put together from the reasoning, the block's
closing and the message in the template's own form. Others write parts of the prompt elsewhere once more follows.
"""

import json
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

from stillhouse.chat.parse import MALFORMED_CALL
from stillhouse.chat.rendering import TemplateError
from stillhouse.chat.template import first_difference, not_prefix_preserving, render_text
from stillhouse.chat.tokenizer import special_tokens
from stillhouse.types import Message, ToolCall, ToolSchema

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_PROBE: Final = "\ue0a1probe\ue0a2"
_ANSWER: Final = "\ue0a1answer\ue0a2"
"""Texts that no message holds."""
CALL_PROBE_TOOLS: Final[list[ToolSchema]] = [
    {
        "type": "function",
        "function": {
            "name": "f", "description": "", "parameters": {"type": "object", "properties": {"a": {"type": "string"}}}
        },
    }
]  # fmt: skip
_CALL: Final[ToolCall] = {
    "id": "call00000",
    "type": "function",
    "function": {"name": "f", "arguments": json.dumps({"a": _ANSWER}, ensure_ascii=False)},
}
CALL_PROBE: Final[list[Message]] = [{"role": "user", "content": "a"}, {"role": "assistant", "tool_calls": [_CALL]}]
"""An exchange that ends with a call."""
_OPEN_TAG: Final = re.compile(r"[<\[][^<>\[\]\s]*\Z")
"""A tag that a text breaks off in."""
_TAG: Final = re.compile(r"<[^<>\s]+>|\[[^\[\]]+\]")
_CLOSING: Final = {"<think>": "</think>", "<|channel>thought": "<channel|>", "<|START_THINKING|>": "<|END_THINKING|>"}
"""Thinking blocks of templates that never render reasoning (R1-Distill, V3.2 and QwQ; Gemma 4; Command R7B)."""
_BLOCK: Final = re.compile(
    rf"(?P<open>{'|'.join(map(re.escape, _CLOSING))})(?P<space>\s*)"
    rf"(?P<close>{'|'.join(map(re.escape, _CLOSING.values()))})?\s*"
)


class _Turn(NamedTuple):
    """A message and the prompt it answers, from where their renderings differ."""

    context: Sequence[Message]
    message: Message
    tools: Sequence[ToolSchema] | None
    shared: str
    """The beginning that prompt and history have in common."""
    prompt: str
    """The end of the prompt, which the history leaves out."""
    body: str
    """What the history has in its place: the message, and what follows it."""

    @property
    def reasoning(self) -> str:
        return str(self.message.get("reasoning_content") or self.message.get("reasoning") or "")


def turn_text(
    tokenizer: "PreTrainedTokenizerBase",
    messages: Sequence[Message],
    tools: Sequence[ToolSchema] | None,
    before: str,
    after: str,
) -> str:
    """What a model writes after the prompt `before` for the last of `messages`, with the token that ends its turn.

    Args:
        tokenizer: its template and its special tokens.
        messages: the conversation up to an assistant message.
        tools: those offered.
        before: the prompt: all messages but the last, and the generation prompt.
        after: all messages.

    Raises:
        TemplateError: the template cannot express the message after this prompt: it moves text from before it, leaves
            out its calls, or has closed the thinking block that its reasoning belongs in.
    """
    *context, message = messages
    text = after[len(before) :] if after.startswith(before) else _rewritten(tokenizer, messages, tools, before, after)
    names = [call["function"]["name"] for call in message.get("tool_calls") or ()]
    if missing := next((name for name in names if name != MALFORMED_CALL and name not in text), None):
        raise TemplateError(f"the chat template does not write the call of {missing} in message {len(context)}")
    template = tokenizer.get_chat_template(tools=list(tools) if tools else None)
    ending = _ending(tokenizer, template, with_calls=bool(names))
    if ending.surplus or ending.addition:
        text = text.rstrip().removesuffix(ending.surplus).rstrip() + ending.addition
    if not text.rstrip().endswith(ending.specials):
        raise TemplateError(
            f"the chat template closes assistant message {len(context)} with no special end-of-turn token"
        )
    return text


def _rewritten(
    tokenizer: "PreTrainedTokenizerBase",
    messages: Sequence[Message],
    tools: Sequence[ToolSchema] | None,
    before: str,
    after: str,
) -> str:
    *context, message = messages
    place = first_difference(before, after)
    if tag := _OPEN_TAG.search(before[:place]):
        place = tag.start()
    turn = _Turn(context, message, tools, before[:place], before[place:], after[place:])
    history = render_text(tokenizer, context, tools, add_generation_prompt=False)
    forms = [_after_moved]
    if history == before or turn.shared.startswith(history):
        # They differ in the generation prompt alone.
        forms = [_after_probe, _after_known_block, _after_header, _after_moved]
    for form in forms:
        if (text := form(tokenizer, turn)) is not None:
            return text
    raise not_prefix_preserving(len(context))


def _after_probe(tokenizer: "PreTrainedTokenizerBase", turn: _Turn) -> str | None:
    """By the template's own rendering of reasoning; None where it renders none."""
    answer: Message = {"role": "assistant", "content": _ANSWER}
    closing = _after_reasoning(tokenizer, turn, answer).partition(_ANSWER)[0]
    if not closing:
        return None
    tag = _TAG.search(closing)
    if (tag[0] if tag else closing.strip()) in turn.prompt:
        return _after_closed(turn, closing.strip())
    # A message with calls may be rendered without its reasoning.
    return turn.reasoning + (_after_reasoning(tokenizer, turn, turn.message) or closing + turn.body)


def _after_reasoning(tokenizer: "PreTrainedTokenizerBase", turn: _Turn, message: Message) -> str:
    """What the template writes after the reasoning of a message; empty where it leaves reasoning out."""
    probe: Message = {**message, "reasoning_content": _PROBE}
    try:
        text = render_text(tokenizer, [*turn.context, probe], turn.tools, add_generation_prompt=False)
    except TemplateError:
        return ""
    return text.partition(_PROBE)[2]


def _after_known_block(tokenizer: "PreTrainedTokenizerBase", turn: _Turn) -> str | None:
    block = _BLOCK.fullmatch(turn.prompt)
    if block is None:
        return None
    closing = _CLOSING[block["open"]]
    if block["close"]:
        return _after_closed(turn, closing)
    # As DeepSeek-R1 writes it: an empty line after the closing tag where the opening one ends its line.
    closing = f"\n{closing}\n\n" if "\n" in block["space"] else closing
    return turn.reasoning + closing + turn.body


def _after_closed(turn: _Turn, closing: str) -> str:
    """The message after a prompt that has closed the thinking block."""
    if turn.reasoning:
        raise TemplateError(
            f"the generation prompt closes the thinking block before message {len(turn.context)}, which has "
            f"reasoning: turn thinking on, or drop the reasoning"
        )
    block = _BLOCK.match(turn.body)
    body = turn.body[block.end() :] if block is not None and block["close"] else turn.body
    return body.lstrip().removeprefix(closing) if body.lstrip().startswith(closing) else body


def _after_header(tokenizer: "PreTrainedTokenizerBase", turn: _Turn) -> str | None:
    """The whole body, where the history writes no generation prompt at all (Apertus after tool results)."""
    history = render_text(tokenizer, turn.context, turn.tools, add_generation_prompt=False)
    return turn.body if turn.shared == history and not turn.reasoning else None


def _after_moved(tokenizer: "PreTrainedTokenizerBase", turn: _Turn) -> str | None:
    """What follows the prompt's end in the history, where earlier text has moved (Mistral Nemo, Command R+)."""
    before, after = turn.shared + turn.prompt, turn.shared + turn.body
    specials = special_tokens(tokenizer)
    starts = [place for special in specials if (place := before.rfind(special)) >= 0]
    if not starts:
        return None
    end = before[max(starts) :]
    place = after.rfind(end)
    text = after[place + len(end) :]
    said = [turn.reasoning, str(turn.message.get("content") or "")]
    return text if place >= 0 and all(part.strip() in text for part in said) else None


class _Ending(NamedTuple):
    """How a template ends a turn."""

    specials: tuple[str, ...]
    """Texts of the special tokens."""
    surplus: str
    """What it writes behind the end of a conversation's last turn."""
    addition: str
    """The token that opens the next turn, where that is what ends this one."""


@lru_cache(maxsize=64)
def _ending(tokenizer: "PreTrainedTokenizerBase", template: str, *, with_calls: bool) -> _Ending:
    """How `template`, the one that `tokenizer` has now, ends a turn of text or of calls."""
    specials = special_tokens(tokenizer)
    tails = _tails(tokenizer, with_calls=with_calls)
    if tails is None:
        return _Ending(specials, "", "")
    tail, longer = tails
    eos = str(tokenizer.eos_token)
    place = first_difference(tail, longer)
    if tag := _OPEN_TAG.search(tail[:place]):
        place = tag.start()
    special = rf"\s*(?:{'|'.join(map(re.escape, specials))})"
    is_rewritten = bool(tail[place:].strip()) and not re.match(special, tail[place:])
    if eos in (tail if is_rewritten else tail[:place]):
        return _Ending(specials, tail.partition(eos)[2].rstrip(), "")
    if is_rewritten:
        closing = re.search(rf"\s*{re.escape(eos)}", longer)
        return _Ending(specials, "", closing[0] if closing else "")
    opening = None
    if not tail[:place].rstrip().endswith(specials):
        opening = re.match(special, tail[place:]) or re.match(special, longer[place:])
    return _Ending(specials, tail[place:].rstrip(), opening[0] if opening else "")


def _tails(tokenizer: "PreTrainedTokenizerBase", *, with_calls: bool) -> tuple[str, str] | None:
    """What follows the last words of a turn at the end of a conversation, and amid one; None if that is refused."""
    messages: list[Message] = [{"role": "user", "content": "a"}, {"role": "assistant", "content": _ANSWER}]
    following: Message = {"role": "user", "content": _PROBE}
    if with_calls:
        messages = CALL_PROBE
        following = {"role": "tool", "content": _PROBE, "tool_call_id": _CALL["id"]}
    tools = CALL_PROBE_TOOLS if with_calls else None
    try:
        after = render_text(tokenizer, messages, tools, add_generation_prompt=False)
        longer = render_text(tokenizer, [*messages, following], tools, add_generation_prompt=False)
    except TemplateError:
        return None
    amid = longer.partition(_PROBE)[0]
    if _ANSWER not in after or _ANSWER not in amid:
        return None
    return after.rpartition(_ANSWER)[2], amid.rpartition(_ANSWER)[2]
