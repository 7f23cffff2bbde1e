"""Messages to the tokens of a prompt, and what stands between two sampled turns."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from stillhouse.chat.text import TemplateError, continuation, not_prefix_preserving, render_text
from stillhouse.chat.tokens import encode, end_of_turn, special_ids
from stillhouse.types import Message, ToolSchema

__all__ = ["TemplateError", "next_turn_ids", "render", "stop_token_ids"]

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def render(
    tokenizer: "PreTrainedTokenizerBase",
    messages: Sequence[Message],
    tools: Sequence[ToolSchema] | None,
    *,
    add_generation_prompt: bool,
) -> list[int]:
    """Token ids of a conversation, as a model of this tokenizer is prompted with it.

    Raises:
        TemplateError: If the template refuses the messages.
    """
    return encode(tokenizer, render_text(tokenizer, messages, tools, add_generation_prompt))


def next_turn_ids(
    tokenizer: "PreTrainedTokenizerBase",
    sampled_ids: Sequence[int],
    messages_so_far: Sequence[Message],
    tool_messages: Sequence[Message],
    tools: Sequence[ToolSchema] | None,
) -> list[int]:
    """Ids to append after a sampled completion so that the next turn can be sampled (token-in, token-out).

    The sampled ids themselves are never tokenised again: only what the template writes after the assistant's turn is.
    How it writes that turn matters only in so far as it still says the same. Qwen3's template, for one, gives the last
    message an empty thought where it has none, and takes it away once more follows.

    Args:
        tokenizer: Tokenizer whose template is used.
        sampled_ids: The completion, which ends with an end-of-turn token or was cut; a cut one gets its end here.
        messages_so_far: The conversation; its last message is the assistant's, parsed from `sampled_ids`.
        tool_messages: The messages that answer it (tool results, or a user's).
        tools: Tools offered.

    Raises:
        TemplateError: If the template is not prefix preserving: it writes what stands before the turn another way once
            more follows, or drops what the turn said.
    """
    last = len(messages_so_far) - 1
    prompt = render_text(tokenizer, messages_so_far[:-1], tools, add_generation_prompt=True)
    after = render_text(tokenizer, messages_so_far, tools, add_generation_prompt=False)
    following = [
        render_text(tokenizer, [*messages_so_far, *answers], tools, add_generation_prompt=True)
        for answers in (tool_messages, _otherwise(tool_messages))
    ]
    after_ids = encode(tokenizer, after)
    end_id = after_ids[end_of_turn(after_ids, special_ids(tokenizer), last)]
    end_text = tokenizer.convert_ids_to_tokens(end_id)
    # The last end of a turn before the answer begins is that of the assistant's turn.
    end = following[0].rfind(end_text, 0, _first_difference(*following))
    turn = continuation(prompt, following[0], last)[: end - len(prompt)]
    said = [str(messages_so_far[-1].get(part) or "") for part in ("reasoning_content", "content")]
    if end < len(prompt) or any(text.strip() in after and text.strip() not in turn for text in said):
        raise not_prefix_preserving(last)
    suffix = encode(tokenizer, following[0][end + len(end_text) :])
    is_ended = bool(sampled_ids) and sampled_ids[-1] in {end_id, tokenizer.eos_token_id}
    return suffix if is_ended else [end_id, *suffix]


def _otherwise(answers: Sequence[Message]) -> list[Message]:
    """The messages with another text from the first character of the first one on."""
    first: Message = {**answers[0], "content": "b" if str(answers[0].get("content")).startswith("a") else "a"}
    return [first, *answers[1:]]


def _first_difference(one: str, other: str) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(one), len(other)))


def stop_token_ids(tokenizer: "PreTrainedTokenizerBase") -> frozenset[int]:
    """Tokens that end an assistant's turn: the tokenizer's end token and the one its template closes a turn with.

    They differ for some base models, whose end token is the end of a document.
    """
    ids = render(
        tokenizer, [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}], None,
        add_generation_prompt=False,
    )  # fmt: skip
    return frozenset({tokenizer.eos_token_id, ids[end_of_turn(ids, special_ids(tokenizer), 1)]})
