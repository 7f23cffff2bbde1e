"""Messages to the text that a chat template makes of them, for one conversation or for many starts of it."""

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from stillhouse.chat.parse import MALFORMED_CALL
from stillhouse.chat.rendering import Starts, TemplateError, Texts, render_starts
from stillhouse.types import JsonObject, Message, ToolSchema

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class Conversation(NamedTuple):
    """A conversation of which some starts are to be rendered."""

    messages: Sequence[Message]
    tools: Sequence[ToolSchema] | None
    prefixes: Sequence[tuple[int, bool]]
    """Number of messages of each start, and whether a generation prompt follows them."""


def prefix_texts(
    tokenizer: "PreTrainedTokenizerBase", conversations: Sequence[Conversation]
) -> Iterator[Iterator[str]]:
    """The texts of some starts of each conversation.

    Args:
        tokenizer: Tokenizer whose template is used.
        conversations: What is rendered.

    Raises:
        TemplateError: From the texts of a conversation, in the place of the first that the template refuses.
        ConfigError: If the template reaches a limit of time, length or memory.
    """
    shown = [_shown_or_problem(one) for one in conversations]
    rendered = render_starts(tokenizer, [one for one in shown if isinstance(one, Starts)])
    for conversation, one in zip(conversations, shown, strict=True):
        yield _texts(conversation, next(rendered) if isinstance(one, Starts) else Texts([], one))


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
    (texts,) = prefix_texts(tokenizer, [Conversation(messages, tools, [(len(messages), add_generation_prompt)])])
    return next(texts)


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


def _texts(conversation: Conversation, rendered: Texts) -> Iterator[str]:
    yield from rendered.texts
    if rendered.refused is not None:
        end, _ = conversation.prefixes[len(rendered.texts)]
        roles = ", ".join(message["role"] for message in conversation.messages[:end])
        raise TemplateError(f"the chat template refuses a conversation with roles [{roles}]: {rendered.refused}")


def _shown_or_problem(conversation: Conversation) -> Starts | str:
    messages, tools, prefixes = conversation
    if not all(end for end, _ in prefixes):
        return "it has no message"
    try:
        return Starts(_shown(messages), tools, prefixes)
    except (AttributeError, KeyError, TypeError) as error:
        return (
            f"a message is not in the OpenAI form: {type(error).__name__}: {error}; expected tool calls with a "
            f"function's name and arguments, and text beside a malformed one"
        )


def _shown(messages: Sequence[Message]) -> list[JsonObject]:
    # Templates handle a key that is missing; of one that is null many write `None`.
    return [{key: value for key, value in _for_template(one).items() if value is not None} for one in messages]


def _for_template(message: Message) -> dict[str, Any]:
    """The message as templates read it.

    Arguments of calls are objects, malformed calls are back in the text where they came from, and reasoning has all of
    its names, since a template knows one of them.
    """
    shown: dict[str, Any] = dict(message)
    if reasoning := message.get("reasoning_content") or message.get("reasoning"):
        shown |= {"reasoning_content": reasoning, "reasoning": reasoning, "thinking": reasoning}
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
