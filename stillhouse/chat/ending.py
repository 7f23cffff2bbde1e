"""How a template ends an assistant's turn."""

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

from stillhouse.chat.message_form import ANSWER, CALL_PROBE, CALL_PROBE_TOOLS
from stillhouse.chat.rendering import TemplateError
from stillhouse.chat.template import first_difference, render_text
from stillhouse.chat.tokenizer import special_tokens
from stillhouse.types import Message

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

PROBE: Final = "\ue0a1probe\ue0a2"
"""A text that no message holds."""
OPEN_TAG: Final = re.compile(r"[<\[][^<>\[\]\s]*\Z")
"""A tag that a text breaks off in."""


class Ending(NamedTuple):
    """How a template ends a turn."""

    specials: tuple[str, ...]
    """Texts of the special tokens."""
    surplus: str
    """The text behind the end of a conversation's last turn."""
    addition: str
    """The token that opens the next turn, where that is what ends this one."""


@lru_cache(maxsize=64)
def ending_of(tokenizer: "PreTrainedTokenizerBase", template: str, *, with_calls: bool, with_tools: bool) -> Ending:
    """Return how `template`, the one that `tokenizer` has now, ends a turn of text or of calls."""
    specials = special_tokens(tokenizer)
    tails = _tails(tokenizer, with_calls=with_calls, with_tools=with_tools)
    if tails is None:
        return Ending(specials, "", "")
    tail, longer = tails
    eos = str(tokenizer.eos_token)
    place = first_difference(tail, longer)
    if tag := OPEN_TAG.search(tail[:place]):
        place = tag.start()
    special = rf"\s*(?:{'|'.join(map(re.escape, specials))})"
    is_rewritten = bool(tail[place:].strip()) and not re.match(special, tail[place:])
    if is_rewritten and (end := re.search(special, tail[:place])):
        # Instructions to the model stand behind the last turn (Command R+).
        return Ending(specials, tail[end.end() :].rstrip(), "")
    if eos in (tail if is_rewritten else tail[:place]):
        return Ending(specials, tail.partition(eos)[2].rstrip(), "")
    if is_rewritten:
        closing = re.search(rf"\s*{re.escape(eos)}", longer)
        return Ending(specials, "", closing[0] if closing else "")
    opening = None
    if not tail[:place].rstrip().endswith(specials):
        opening = re.match(special, tail[place:]) or re.match(special, longer[place:])
    return Ending(specials, tail[place:].rstrip(), opening[0] if opening else "")


def _tails(tokenizer: "PreTrainedTokenizerBase", *, with_calls: bool, with_tools: bool) -> tuple[str, str] | None:
    """Return what follows a turn's last words at the end of a conversation, and amid one; None if that is refused."""
    messages: list[Message] = [{"role": "user", "content": "a"}, {"role": "assistant", "content": ANSWER}]
    following: Message = {"role": "user", "content": PROBE}
    if with_calls:
        messages = CALL_PROBE
        following = {"role": "tool", "content": PROBE, "tool_call_id": CALL_PROBE[-1]["tool_calls"][0]["id"]}
    tools = CALL_PROBE_TOOLS if with_calls or with_tools else None
    try:
        after = render_text(tokenizer, messages, tools, add_generation_prompt=False)
        longer = render_text(tokenizer, [*messages, following], tools, add_generation_prompt=False)
    except TemplateError:
        return None
    amid = longer.partition(PROBE)[0]
    if ANSWER not in after or ANSWER not in amid:
        return None
    return after.rpartition(ANSWER)[2], amid.rpartition(ANSWER)[2]
