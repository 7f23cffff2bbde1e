"""Messages to the text that a chat template makes of them, for one conversation or for many starts of it."""

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from stillhouse.chat.parse import MALFORMED_CALL
from stillhouse.types import Message, ToolSchema

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class TemplateError(ValueError):
    """A conversation that the chat template cannot render, or renders in a way that masks cannot follow."""


def prefix_texts(
    tokenizer: "PreTrainedTokenizerBase",
    messages: Sequence[Message],
    tools: Sequence[ToolSchema] | None,
    prefixes: Sequence[tuple[int, bool]],
) -> Iterator[str]:
    """The texts of some starts of a conversation.

    Args:
        tokenizer: Tokenizer whose template is used.
        messages: The whole conversation.
        tools: Tools offered.
        prefixes: Number of messages of each start, and whether a generation prompt follows them.

    Raises:
        TemplateError: If the template refuses the messages; some of it only once the text is asked for.
    """
    shown = _shown(messages)
    starts = {prompt: [shown[:end] for end, p in prefixes if p is prompt] for prompt in (True, False)}
    try:
        # Two calls for all of them, since transformers copies the tools at each.
        texts = {prompt: iter(_apply(tokenizer, starts[prompt], tools, prompt)) for prompt in (True, False)}
    except TemplateError:
        # One by one, so that the error is that of the first start that is refused.
        return (render_text(tokenizer, messages[:end], tools, prompt) for end, prompt in prefixes)
    return (next(texts[prompt]) for _, prompt in prefixes)


def render_text(
    tokenizer: "PreTrainedTokenizerBase",
    messages: Sequence[Message],
    tools: Sequence[ToolSchema] | None,
    add_generation_prompt: bool,
) -> str:
    """The text of a conversation.

    Raises:
        TemplateError: If the template refuses the messages, naming their roles.
    """
    shown = _shown(messages)
    try:
        return _apply(tokenizer, [shown], tools, add_generation_prompt)[0]
    except TemplateError as error:
        roles = ", ".join(message["role"] for message in messages)
        raise TemplateError(f"the chat template refuses a conversation with roles [{roles}]: {error}") from error


def continuation(start: str, whole: str, index: int) -> str:
    """What `whole` says behind `start`.

    Args:
        start: A rendered conversation, or the prompt of message `index`.
        whole: What it becomes once more is said.
        index: The message at whose border the two meet, for the error.

    Raises:
        TemplateError: If `whole` begins another way.
    """
    if not whole.startswith(start):
        raise not_prefix_preserving(index)
    return whole[len(start) :]


def not_prefix_preserving(index: int) -> TemplateError:
    """The error of a template that renders a conversation up to message `index` another way once more follows."""
    return TemplateError(
        f"the chat template is not prefix preserving at message {index}: the conversation up to it is rendered "
        f"differently once more follows; use a template that renders every turn the same wherever it stands"
    )


def _apply(
    tokenizer: "PreTrainedTokenizerBase",
    conversations: list[list[dict[str, Any]]],
    tools: Sequence[ToolSchema] | None,
    add_generation_prompt: bool,
) -> list[str]:
    from jinja2 import TemplateError as JinjaError

    if not all(conversations):
        raise TemplateError("it has no message")
    if not conversations:
        return []
    try:
        return tokenizer.apply_chat_template(
            conversations,
            tools=list(tools) if tools else None,
            add_generation_prompt=add_generation_prompt,
            tokenize=False,
        )
    except (JinjaError, TypeError, ValueError) as error:
        raise TemplateError(str(error)) from error


def _shown(messages: Sequence[Message]) -> list[dict[str, Any]]:
    try:
        # Templates print None. transformers 5.23 leaves such keys out by itself, 5.17 does not.
        return [
            {name: value for name, value in _for_template(message).items() if value is not None} for message in messages
        ]
    except (AttributeError, KeyError, TypeError) as error:
        raise TemplateError(
            f"a message is not in the OpenAI form: {type(error).__name__}: {error}; expected tool calls with a "
            f"function's name and arguments, and text beside a malformed one"
        ) from error


def _for_template(message: Message) -> dict[str, Any]:
    """The message as templates read it.

    Arguments of calls are objects, malformed calls are back in the text where they came from, and reasoning has both of
    its names, since a template knows one of them.
    """
    shown: dict[str, Any] = dict(message)
    if reasoning := message.get("reasoning_content") or message.get("reasoning"):
        shown |= {"reasoning_content": reasoning, "reasoning": reasoning}
    calls = message.get("tool_calls")
    if not calls:
        return shown
    kept: list[dict[str, Any]] = []
    pieces = [message.get("content") or ""]
    for call in calls:
        function: dict[str, Any] = dict(call["function"])
        if function["name"] == MALFORMED_CALL:
            pieces.append(function["arguments"])
        else:
            kept.append({**call, "function": {**function, "arguments": _parsed(function["arguments"])}})
    return {**shown, "content": "\n".join(piece for piece in pieces if piece) or None, "tool_calls": kept or None}


def _parsed(arguments: Any) -> Any:
    """The object that a call's arguments spell; what spells none, or is none of a text, stays as it is."""
    if not isinstance(arguments, str):
        return arguments
    try:
        value = json.loads(arguments)
    except json.JSONDecodeError:
        return arguments
    return value if isinstance(value, dict) else arguments
