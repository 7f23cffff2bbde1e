"""Which characters of an assistant message are reasoning and which tool calls, whatever the template.

A part is what the template writes for the message and does not write for the same message without that part. What is in
neither is text. A token belongs to the part that its first character is in. The end-of-turn token belongs to the tool
calls where the message makes some, since a call that does not end is of no use, and to the text otherwise.
"""

from collections.abc import Sequence, Set
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from stillhouse.chat.parse import parse_completion
from stillhouse.chat.text import continuation, render_text
from stillhouse.chat.tokens import encode_placed
from stillhouse.types import Message, ToolSchema

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Part = Literal["text", "reasoning", "tool_calls"]
ALL_PARTS: Final[frozenset[Part]] = frozenset({"text", "reasoning", "tool_calls"})

_REASONING: Final = frozenset({"reasoning", "reasoning_content", "reasoning_details"})


class Piece(NamedTuple):
    """Characters of what a message says, from `start` to before `end`."""

    start: int
    end: int
    part: Part


def pieces_of(
    tokenizer: "PreTrainedTokenizerBase",
    messages: Sequence[Message],
    tools: Sequence[ToolSchema] | None,
    before: str,
    said: str,
) -> tuple[Piece, ...]:
    """Reasoning and tool calls of the last message, as far as the template writes them.

    Args:
        tokenizer: Tokenizer whose template is used.
        messages: The conversation up to the message.
        tools: Tools offered.
        before: The rendered prompt of the message.
        said: What the template writes behind it for the message.

    Raises:
        TemplateError: If the template refuses the message without one of its parts, or renders what is before it
            another way then, or the tokenizer is a slow one.
    """
    *context, message = messages
    variants: dict[Part, Message | None] = {
        "reasoning": _without_reasoning(message),
        "tool_calls": _without_calls(message),
    }
    present = {part: variant for part, variant in variants.items() if variant is not None}
    if not present:
        return ()
    borders = {*encode_placed(tokenizer, [said])[0].starts, len(said)}
    pieces = []
    for part, variant in present.items():
        text = render_text(tokenizer, [*context, variant], tools, add_generation_prompt=False)
        other = continuation(before, text, len(context))
        # Reasoning stands at the start and calls at the end, which decides where the texts alone do not.
        pieces.append(Piece(*_differing(said, other, borders, last=part == "tool_calls"), part))
    return tuple(piece for piece in pieces if piece.start < piece.end)


def _without_reasoning(message: Message) -> Message | None:
    """The message without its reasoning; None where it has none."""
    content: Any = message.get("content")
    if any(message.get(key) for key in _REASONING):
        return _kept(message, _REASONING)
    if isinstance(content, str) and "</think>" in content:
        return {**message, "content": parse_completion(content, with_calls=False)["content"] or ""}
    return None


def _without_calls(message: Message) -> Message | None:
    """The message without its tool calls; None where it makes none."""
    if not message.get("tool_calls"):
        return None
    return _kept(message, {"tool_calls"})


def _kept(message: Message, dropped: Set[str]) -> Message:
    """The message without some keys; its content is a text, since a template may print None."""
    rest: Any = {key: value for key, value in message.items() if key not in dropped}
    rest["content"] = message.get("content") or ""
    return rest


def _differing(text: str, other: str, borders: Set[int], *, last: bool) -> tuple[int, int]:
    """Start and end of what stands in `text` and not in `other`.

    A block that was put in may be found at several places: in `xyxyz` beside `xyz` the block is `xy` at 0, `yx` at 1 or
    `xy` at 2. Those are preferred that begin and end at `borders`, then the last or the first.
    """
    prefix, suffix = _num_equal(text, other), _num_equal(text[::-1], other[::-1])
    first = len(other) - suffix
    if first > prefix:
        return prefix, len(text) - suffix
    length = max(0, len(text) - len(other))
    start = max(
        range(first, prefix + 1),
        key=lambda place: ((place in borders) + (place + length in borders), place if last else -place),
    )
    return start, start + length


def _num_equal(one: str, other: str) -> int:
    """Characters that both texts begin with alike."""
    shorter = min(len(one), len(other))
    return next((place for place in range(shorter) if one[place] != other[place]), shorter)
