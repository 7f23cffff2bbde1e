"""Messages to tokens, with the spans that were (or would be) sampled.

Everything is found by rendering prefixes of the conversation, never by searching text for markers, so it holds for any
template that is prefix preserving: one that renders a conversation's start the same whatever follows it.
"""

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from stillhouse.chat.parse import MALFORMED_CALL
from stillhouse.types import Message, ToolSchema

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class TemplateError(ValueError):
    """A conversation that the chat template cannot render, or renders in a way that masks cannot follow."""


class RenderedSample(NamedTuple):
    """A conversation as tokens; both lists have one entry per token."""

    token_ids: list[int]
    loss_mask: list[bool]
    """True where the token belongs to an assistant message or is its end-of-turn token."""


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
    return _encode(tokenizer, _render_text(tokenizer, messages, tools, add_generation_prompt))


def render_sample(
    tokenizer: "PreTrainedTokenizerBase", messages: Sequence[Message], tools: Sequence[ToolSchema] | None
) -> RenderedSample:
    """Token ids and loss mask of a whole conversation.

    The supervised span of an assistant message starts after the generation prompt and ends with its end-of-turn token;
    what the template writes behind that (ChatML's newline) is not supervised. Prompts and spans are tokenised apart, as
    they are when a completion is sampled, so that no token crosses the border.

    Raises:
        TemplateError: If the template refuses the messages, is not prefix preserving (naming the message), or the
            conversation's parts do not add up to its text.
    """
    ids: list[int] = []
    mask: list[bool] = []
    done = ""
    for index, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        before = _render_text(tokenizer, messages[:index], tools, add_generation_prompt=True)
        after = _render_text(tokenizer, messages[: index + 1], tools, add_generation_prompt=False)
        prompt_ids = _encode(tokenizer, _continuation(done, before, index))
        span_ids = _encode(tokenizer, _continuation(before, after, index))
        end = _end_of_turn(tokenizer, span_ids, index) + 1
        ids += prompt_ids + span_ids
        mask += [False] * len(prompt_ids) + [True] * end + [False] * (len(span_ids) - end)
        done = after
    full = _render_text(tokenizer, messages, tools, add_generation_prompt=False)
    rest = _encode(tokenizer, _continuation(done, full, len(messages) - 1))
    ids += rest
    mask += [False] * len(rest)
    if ids != _encode(tokenizer, full) and tokenizer.decode(ids) != full:
        raise TemplateError(
            f"a conversation of {len(messages)} messages tokenised in parts decodes to another text; "
            f"the tokenizer adds characters at the start of a text, which masks cannot follow"
        )
    return RenderedSample(ids, mask)


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
    after = _render_text(tokenizer, messages_so_far, tools, add_generation_prompt=False)
    following = _render_text(tokenizer, [*messages_so_far, *tool_messages], tools, add_generation_prompt=True)
    after_ids = _encode(tokenizer, after)
    end_id = after_ids[_end_of_turn(tokenizer, after_ids, last)]
    end_text = tokenizer.convert_ids_to_tokens(end_id)
    trailer = after[after.rindex(end_text) + len(end_text) :]
    suffix = _encode(tokenizer, trailer + _continuation(after, following, last))
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
    return frozenset({tokenizer.eos_token_id, ids[_end_of_turn(tokenizer, ids, 1)]})


def _render_text(
    tokenizer: "PreTrainedTokenizerBase",
    messages: Sequence[Message],
    tools: Sequence[ToolSchema] | None,
    add_generation_prompt: bool,
) -> str:
    from jinja2 import TemplateError as JinjaError

    try:
        return tokenizer.apply_chat_template(
            [_for_template(message) for message in messages],
            tools=list(tools) if tools else None,
            add_generation_prompt=add_generation_prompt,
            tokenize=False,
        )
    except (JinjaError, TypeError, ValueError) as error:
        roles = ", ".join(message["role"] for message in messages)
        raise TemplateError(f"the chat template refuses a conversation with roles [{roles}]: {error}") from error


def _for_template(message: Message) -> dict[str, Any]:
    """The message with call arguments as objects, and malformed calls back in the text where they came from."""
    calls = message.get("tool_calls")
    if not calls:
        return dict(message)
    kept: list[dict[str, Any]] = []
    pieces = [message.get("content") or ""]
    for call in calls:
        function = call["function"]
        if function["name"] == MALFORMED_CALL:
            pieces.append(function["arguments"])
        else:
            arguments = _parsed(function["arguments"])
            kept.append({**call, "function": {**function, "arguments": arguments}})
    return {**message, "content": "\n".join(piece for piece in pieces if piece) or None, "tool_calls": kept or None}


def _parsed(arguments: str) -> Any:
    try:
        value = json.loads(arguments)
    except json.JSONDecodeError:
        return arguments
    return value if isinstance(value, dict) else arguments


def _encode(tokenizer: "PreTrainedTokenizerBase", text: str) -> list[int]:
    return tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]


def _continuation(start: str, whole: str, index: int) -> str:
    if not whole.startswith(start):
        raise TemplateError(
            f"the chat template is not prefix preserving at message {index}: the conversation up to it is rendered "
            f"differently once more follows; use a template that renders every turn the same wherever it stands"
        )
    return whole[len(start) :]


def _end_of_turn(tokenizer: "PreTrainedTokenizerBase", ids: Sequence[int], index: int) -> int:
    """Place of the last special token in `ids`."""
    special = {token_id for token_id, token in tokenizer.added_tokens_decoder.items() if token.special}
    for place in range(len(ids) - 1, -1, -1):
        if ids[place] in special:
            return place
    raise TemplateError(f"the chat template closes assistant message {index} with no special end-of-turn token")
