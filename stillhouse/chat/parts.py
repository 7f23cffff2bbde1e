"""The characters of an assistant message that are reasoning, and those that are calls, whatever the template.

A part is what the template writes for the message and omits for the same message without that part; the remainder is
text. A token belongs to the part that its first character is in. The end-of-turn token belongs to the tool calls where
the message makes some, since a call that does not end is of no use, and to the text otherwise.
"""

from collections.abc import Sequence, Set
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from stillhouse.chat.content import REASONING_KEYS
from stillhouse.chat.template import first_difference, render_text
from stillhouse.chat.thoughts import split_thoughts
from stillhouse.chat.tokenizer import encode_placed
from stillhouse.chat.turn import turn_text
from stillhouse.types import Message, Tools

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Part = Literal["text", "reasoning", "tool_calls"]
ALL_PARTS: Final[frozenset[Part]] = frozenset({"text", "reasoning", "tool_calls"})


class Piece(NamedTuple):
    """Characters `start` to `end` (exclusive) of a rendered message."""

    start: int
    end: int
    part: Part


def pieces_of(
    tokenizer: "PreTrainedTokenizerBase", messages: Sequence[Message], tools: Tools, before: str, completion: str
) -> tuple[Piece, ...]:
    """Return reasoning and tool calls of the last message, as far as the template writes them.

    `before` is the rendered prompt of the message, `completion` what the template writes after it. Raises TemplateError
    if the template refuses the message without a part, or renders the prompt differently.
    """
    *context, message = messages
    variants: dict[Part, Message] = {}
    if (variant := _without_reasoning(message)) is not None:
        variants["reasoning"] = variant
    if message.get("tool_calls"):
        variants["tool_calls"] = _without(message, {"tool_calls"})
    if not variants:
        return ()
    borders = {*encode_placed(tokenizer, [completion])[0].starts, len(completion)}
    pieces = []
    for part, variant in variants.items():
        text = render_text(tokenizer, [*context, variant], tools, add_generation_prompt=False)
        other = turn_text(tokenizer, [*context, variant], tools, before, text)
        # Reasoning comes first and calls last, which settles what the texts alone leave open.
        pieces.append(Piece(*_inserted(completion, other, borders, last=part == "tool_calls"), part))
    return tuple(piece for piece in pieces if piece.start < piece.end)


def _without_reasoning(message: Message) -> Message | None:
    """Return the message without its reasoning; None where it has none."""
    if any(map(message.get, REASONING_KEYS)):
        return _without(message, frozenset(REASONING_KEYS))
    content: Any = message.get("content")
    if isinstance(content, str) and "</think>" in content:
        return {**message, "content": split_thoughts(content).answer}
    return None


def _without(message: Message, dropped: Set[str]) -> Message:
    """Return the message without the keys `dropped`; its content is text, since a template may print None."""
    rest: Any = {key: value for key, value in message.items() if key not in dropped}
    return rest | {"content": message.get("content") or ""}


def _inserted(text: str, other: str, borders: Set[int], *, last: bool) -> tuple[int, int]:
    """Return start and end of what is in `text` and not in `other`.

    An inserted block may match at several places: comparing `xyxyz` with `xyz` it is `xy` at 0, `yx` at 1 or `xy` at 2.
    Places that begin and end at `borders` are preferred, then the last or the first.
    """
    prefix, suffix = first_difference(text, other), first_difference(text[::-1], other[::-1])
    first = len(other) - suffix
    if first > prefix:
        return prefix, len(text) - suffix
    length = max(0, len(text) - len(other))
    start = max(
        range(first, prefix + 1),
        key=lambda place: ((place in borders) + (place + length in borders), place if last else -place),
    )
    return start, start + length
