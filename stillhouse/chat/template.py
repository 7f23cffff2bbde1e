"""Messages to the tokens of a prompt, and what stands between two sampled turns."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from stillhouse.chat.text import TemplateError, continuation, render_text
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

    Args:
        tokenizer: Tokenizer whose template is used.
        sampled_ids: The completion, which ends with an end-of-turn token or was cut; a cut one gets its end here.
        messages_so_far: The conversation; its last message is the assistant's, parsed from `sampled_ids`.
        tool_messages: The messages that answer it (tool results, or a user's).
        tools: Tools offered.

    Raises:
        TemplateError: If the template is not prefix preserving.
    """
    last = len(messages_so_far) - 1
    after = render_text(tokenizer, messages_so_far, tools, add_generation_prompt=False)
    following = render_text(tokenizer, [*messages_so_far, *tool_messages], tools, add_generation_prompt=True)
    after_ids = encode(tokenizer, after)
    end_id = after_ids[end_of_turn(after_ids, special_ids(tokenizer), last)]
    end_text = tokenizer.convert_ids_to_tokens(end_id)
    trailer = after[after.rindex(end_text) + len(end_text) :]
    suffix = encode(tokenizer, trailer + continuation(after, following, last))
    is_ended = bool(sampled_ids) and sampled_ids[-1] in {end_id, tokenizer.eos_token_id}
    return suffix if is_ended else [end_id, *suffix]


def stop_token_ids(tokenizer: "PreTrainedTokenizerBase") -> frozenset[int]:
    """Tokens that end an assistant's turn: the tokenizer's end token and the one its template closes a turn with.

    They differ for some base models, whose end token is the end of a document.
    """
    ids = render(
        tokenizer, [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}], None,
        add_generation_prompt=False,
    )  # fmt: skip
    return frozenset({tokenizer.eos_token_id, ids[end_of_turn(ids, special_ids(tokenizer), 1)]})
