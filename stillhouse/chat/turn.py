"""The text that a model writes after the generation prompt when it writes a message.

With most templates that is the message's rendering after the prompt's. Those of reasoning models open a thinking block
in the generation prompt, or open and close it, and leave it out of the history (DeepSeek-R1-Distill, QwQ, Gemma 4,
MiniMax-M2): there no rendering begins with the prompt, and the text is put together from the reasoning, the block's
closing and the message in the template's own form. Others write parts of the prompt elsewhere once more follows.
"""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, cast

from stillhouse.chat.content import calls_of, reasoning_of, text_of
from stillhouse.chat.ending import OPEN_TAG, PROBE, ending_of
from stillhouse.chat.message_form import ANSWER
from stillhouse.chat.parse import MALFORMED_CALL
from stillhouse.chat.rendering import TemplateError
from stillhouse.chat.template import first_difference, not_prefix_preserving, render_text
from stillhouse.chat.thinking import BLOCK, closed_block_error, closing_after, is_closed, with_left_out_reasoning
from stillhouse.chat.tokenizer import special_tokens
from stillhouse.types import Message, Tools

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_PROBE_NAME: Final = "stillhouse_probe"
_TAG: Final = re.compile(r"<[^<>\s]+>|\[[^\[\]]+\]")


class _Turn(NamedTuple):
    """A message and the prompt it answers, from where their renderings differ."""

    context: Sequence[Message]
    message: Message
    tools: Tools
    shared: str
    """The beginning that prompt and history have in common."""
    prompt: str
    """The end of the prompt, which the history leaves out."""
    body: str
    """The text of the history in its place: the message, and what follows it."""

    @property
    def reasoning(self) -> str:
        return reasoning_of(self.message)


def turn_text(
    tokenizer: "PreTrainedTokenizerBase", messages: Sequence[Message], tools: Tools, before: str, after: str
) -> str:
    """Return what a model writes for the last of `messages`, an assistant's, with the token that ends its turn.

    `before` renders all messages but the last, with the generation prompt; `after` renders them all. Raises
    TemplateError if the template cannot express the message after this prompt: it moves text from before it, leaves out
    its calls, or has closed the thinking block that its reasoning belongs in.
    """
    *context, message = messages
    index = len(context)
    if after.startswith(before):
        text = with_left_out_reasoning(tokenizer, reasoning_of(message), before, after[len(before) :])
    else:
        text = _rewritten(tokenizer, messages, tools, before, after)
    names = [call["function"]["name"] for call in message.get("tool_calls") or ()]
    names = [name for name in names if name != MALFORMED_CALL]
    if missing := _call_not_written(tokenizer, messages, tools, names, text):
        raise TemplateError(f"the chat template does not write the call of {missing} in message {index}")
    template = tokenizer.get_chat_template(tools=list(tools) if tools else None)
    ending = ending_of(tokenizer, template, with_calls=bool(names), with_tools=bool(tools))
    if ending.surplus or ending.addition:
        text = text.rstrip().removesuffix(ending.surplus).rstrip() + ending.addition
    _check_end(text, message, index, ending.specials, str(tokenizer.eos_token))
    return text


def _call_not_written(
    tokenizer: "PreTrainedTokenizerBase", messages: Sequence[Message], tools: Tools, names: Sequence[str], text: str
) -> str | None:
    """Return the first of the called `names` that the turn's `text` lacks; None where it has them all."""
    *context, message = messages
    mentioned = next((name for name in names if name in said_in(message)), None)
    if mentioned is None:
        return next((name for name in names if text.count(name) < names.count(name)), None)
    # The text may have the name without having the call.
    calls = [
        {**call, "function": {**call["function"], "name": _PROBE_NAME}} if call["function"]["name"] in names else call
        for call in message["tool_calls"]
    ]
    renamed = cast(Message, {**message, "tool_calls": calls})
    rendered = render_text(tokenizer, [*context, renamed], tools, add_generation_prompt=False)
    return mentioned if rendered.count(_PROBE_NAME) < len(names) else None


def _check_end(text: str, message: Message, index: int, specials: Sequence[str], eos: str) -> None:
    """Raise TemplateError for a turn that no special token ends, or that another one ends earlier."""
    end = next((special for special in specials if text.rstrip().endswith(special)), None)
    if end is None:
        raise TemplateError(f"the chat template closes assistant message {index} with no special end-of-turn token")
    if eos in text.rstrip().removesuffix(end) and eos not in said_in(message):
        raise TemplateError(f"the chat template ends assistant message {index} with {eos} and writes more of it behind")


def said_in(message: Message) -> str:
    """Return all that the message says: its reasoning, content, and arguments of calls."""
    return "\n".join([reasoning_of(message), text_of(message), *(call.arguments for call in calls_of(message))])


def _rewritten(
    tokenizer: "PreTrainedTokenizerBase", messages: Sequence[Message], tools: Tools, before: str, after: str
) -> str:
    *context, message = messages
    if reasoning_of(message) and is_closed(before):
        raise closed_block_error(tokenizer, len(context))
    place = first_difference(before, after)
    if tag := OPEN_TAG.search(before[:place]):
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
    """Return the turn by the template's own rendering of reasoning; None where it renders none."""
    answer: Message = {"role": "assistant", "content": ANSWER}
    closing = _after_reasoning(tokenizer, turn, answer).partition(ANSWER)[0]
    if not closing:
        return None
    tag = _TAG.search(closing)
    if (tag[0] if tag else closing.strip()) in turn.prompt:
        return _after_closed(tokenizer, turn, closing.strip())
    # A message with calls may be rendered without its reasoning.
    return turn.reasoning + (_after_reasoning(tokenizer, turn, turn.message) or closing + turn.body)


def _after_reasoning(tokenizer: "PreTrainedTokenizerBase", turn: _Turn, message: Message) -> str:
    """Return what the template writes after the reasoning of a message; empty where it leaves reasoning out."""
    probe: Message = {**message, "reasoning_content": PROBE}
    try:
        text = render_text(tokenizer, [*turn.context, probe], turn.tools, add_generation_prompt=False)
    except TemplateError:
        return ""
    return text.partition(PROBE)[2]


def _after_known_block(tokenizer: "PreTrainedTokenizerBase", turn: _Turn) -> str | None:
    block = BLOCK.fullmatch(turn.prompt)
    if block is None:
        return None
    if block["close"]:
        return _after_closed(tokenizer, turn, block["close"])
    return turn.reasoning + closing_after(block) + turn.body


def _after_closed(tokenizer: "PreTrainedTokenizerBase", turn: _Turn, closing: str) -> str:
    """Return the message after a prompt that has closed the thinking block."""
    if turn.reasoning:
        raise closed_block_error(tokenizer, len(turn.context))
    block = BLOCK.match(turn.body)
    body = turn.body[block.end() :] if block is not None and block["close"] else turn.body
    return body.lstrip().removeprefix(closing) if body.lstrip().startswith(closing) else body


def _after_header(tokenizer: "PreTrainedTokenizerBase", turn: _Turn) -> str | None:
    """Return the whole body, where the history writes no generation prompt at all (Apertus after tool results)."""
    history = render_text(tokenizer, turn.context, turn.tools, add_generation_prompt=False)
    return turn.body if turn.shared == history and not (turn.reasoning and turn.reasoning in turn.body) else None


def _after_moved(tokenizer: "PreTrainedTokenizerBase", turn: _Turn) -> str | None:
    """Return what follows the prompt's end in the history, where earlier text has moved (Mistral Nemo, Command R+)."""
    before, after = turn.shared + turn.prompt, turn.shared + turn.body
    specials = special_tokens(tokenizer)
    starts = [place for special in specials if (place := before.rfind(special)) >= 0]
    if not starts:
        return None
    end = before[max(starts) :]
    parts = [part.strip() for part in (turn.reasoning, str(turn.message.get("content") or ""))]
    said = [part for part in parts if part and part in after]
    place = after.rfind(end)
    # A message in two parts has an opening in each (gpt-oss).
    for _ in said or [""]:
        text = after[place + len(end) :]
        if place >= 0 and all(part in text for part in said):
            return text
        place = after.rfind(end, 0, max(place, 0))
    return None
