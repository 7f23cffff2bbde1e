"""Where a sampled turn ends, and what the template writes behind it before the next one (token-in, token-out)."""

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from stillhouse.chat.content import reasoning_of, text_of
from stillhouse.chat.message_form import CALL_PROBE, CALL_PROBE_TOOLS
from stillhouse.chat.rendering import Prefixes, TemplateError
from stillhouse.chat.template import first_difference, not_prefix_preserving, prefix_texts, render_text
from stillhouse.chat.tokenizer import encode
from stillhouse.chat.turn import turn_text
from stillhouse.types import Message, Tools

if TYPE_CHECKING:
    from transformers import GenerationConfig, PreTrainedTokenizerBase

_EXCHANGE: Final[list[Message]] = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]


def end_token_id(
    tokenizer: "PreTrainedTokenizerBase", messages: Sequence[Message] = _EXCHANGE, tools: Tools = None
) -> int:
    """Return the token with which the template ends the last of `messages`, an assistant's; raises as `turn_text`."""
    before = render_text(tokenizer, messages[:-1], tools, add_generation_prompt=True)
    after = render_text(tokenizer, messages, tools, add_generation_prompt=False)
    return encode(tokenizer, turn_text(tokenizer, messages, tools, before, after).rstrip())[-1]


class TurnEnds(NamedTuple):
    """The tokens with which a template ends an assistant's turn."""

    text: int
    calls: int
    """Of a turn with calls, which Llama 3.1, GLM and gpt-oss end in another way; `text` where it knows no tools."""


def turn_ends(tokenizer: "PreTrainedTokenizerBase") -> TurnEnds:
    """Return how the template ends turns; raise TemplateError if it ends none with a special token."""
    try:
        text = end_token_id(tokenizer)
    except TemplateError:  # It may need tools (Hermes 3's for tools).
        text = end_token_id(tokenizer, tools=CALL_PROBE_TOOLS)
    with suppress(TemplateError):  # It may know no tools.
        return TurnEnds(text, end_token_id(tokenizer, CALL_PROBE, CALL_PROBE_TOOLS))
    return TurnEnds(text, text)


def stop_token_ids(
    tokenizer: "PreTrainedTokenizerBase", generation: "GenerationConfig | None" = None
) -> frozenset[int]:
    """Return the tokens that end an assistant's turn: the tokenizer's, those of `turn_ends` and of a generation config.

    They differ for some base models, whose end token is the end of a document. Raises as `turn_ends`.
    """
    return frozenset({tokenizer.eos_token_id, *turn_ends(tokenizer), *end_ids(generation)})


def end_ids(generation: "GenerationConfig | None") -> list[int]:
    """Return the end tokens that a generation config names."""
    named = None if generation is None else generation.eos_token_id
    return named if isinstance(named, list) else [] if named is None else [named]


def next_turn_ids(
    tokenizer: "PreTrainedTokenizerBase",
    sampled_ids: Sequence[int],
    messages: Sequence[Message],
    new_messages: Sequence[Message],
    tools: Tools,
) -> list[int]:
    """Return the ids to append after a sampled completion so that the next turn can be sampled (token-in, token-out).

    The sampled ids, with their end-of-turn token or cut off, are never re-tokenised: only what the template writes
    after the assistant's turn is. The last of `messages` is the assistant's, parsed from `sampled_ids`; raises as
    `next_turn`.
    """
    end_id, text = next_turn(tokenizer, messages, new_messages, tools)
    suffix = encode(tokenizer, text)
    is_ended = bool(sampled_ids) and sampled_ids[-1] in {end_id, tokenizer.eos_token_id}
    return suffix if is_ended else [end_id, *suffix]


def next_turn(
    tokenizer: "PreTrainedTokenizerBase", messages: Sequence[Message], new_messages: Sequence[Message], tools: Tools
) -> tuple[int, str]:
    """Return the token that ends the last of `messages`, the assistant's, and what follows until its next turn begins.

    The template may render that turn differently as long as it says the same: Qwen3's gives the last message an empty
    thought where it has none, and removes it once more follows. `new_messages` are tool results, or a user's message.
    Raises TemplateError if the template is not prefix preserving: it renders what precedes the turn differently once
    more follows, or drops what the turn said.
    """
    last = len(messages) - 1
    whole = [*messages, *new_messages]
    # The same with a new message that differs from its first character on.
    first: Message = {**new_messages[0], "content": "b" if str(new_messages[0].get("content")).startswith("a") else "a"}
    other = [*messages, first, *new_messages[1:]]
    # At once, since each request to the process that renders costs more than a rendering.
    texts, others = prefix_texts(
        tokenizer,
        [
            Prefixes(whole, tools, [(last, True), (len(messages), False), (len(whole), True)]),
            Prefixes(other, tools, [(len(other), True)]),
        ],
    )
    prompt, after, following = texts
    (altered,) = others
    end_id = encode(tokenizer, turn_text(tokenizer, messages, tools, prompt, after).rstrip())[-1]
    end_text = tokenizer.convert_ids_to_tokens(end_id)
    # The last end of a turn before the new messages begin ends the assistant's.
    end = following.rfind(end_text, 0, first_difference(following, altered))
    start = len(prompt) if following.startswith(prompt) else first_difference(prompt, after)
    if following[:start] != after[:start]:
        # A thinking block that the prompt opens may be left out of the history.
        history = render_text(tokenizer, messages[:-1], tools, add_generation_prompt=False)
        start = first_difference(prompt, following)
        if start < first_difference(prompt, history):
            raise not_prefix_preserving(last)
    said = [reasoning_of(messages[-1]), text_of(messages[-1])]
    if end < start or any(text.strip() in after and text.strip() not in following[start:end] for text in said):
        raise not_prefix_preserving(last)
    return end_id, following[end + len(end_text) :]
