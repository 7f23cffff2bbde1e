"""Messages rendered by a chat template, as text or as the tokens of a prompt."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from stillhouse.chat.parse import MALFORMED_CALL
from stillhouse.chat.rendering import Prefixes, RenderedPrefixes, TemplateError, render_prefixes
from stillhouse.chat.tokenizer import encode
from stillhouse.types import JsonObject, Message, ToolSchema

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def prefix_texts(tokenizer: "PreTrainedTokenizerBase", conversations: Sequence[Prefixes]) -> Iterator[Iterator[str]]:
    """The texts of some prefixes of each conversation, whose messages are in the OpenAI form.

    Raises:
        TemplateError: from the texts of one conversation, in place of the first prefix that the template refuses.
        ConfigError: the template exceeds a limit of time, length or memory.
    """
    prepared = [_prepare(conversation) for conversation in conversations]
    rendered = render_prefixes(tokenizer, [item for item in prepared if isinstance(item, Prefixes)])
    for conversation, item in zip(conversations, prepared, strict=True):
        yield _texts(conversation, next(rendered) if isinstance(item, Prefixes) else RenderedPrefixes([], item))


def render_text(
    tokenizer: "PreTrainedTokenizerBase",
    messages: Sequence[Message],
    tools: Sequence[ToolSchema] | None,
    add_generation_prompt: bool,
) -> str:
    """The text of a conversation; raises as `prefix_texts`."""
    (texts,) = prefix_texts(tokenizer, [Prefixes(messages, tools, [(len(messages), add_generation_prompt)])])
    return next(texts)


def render(
    tokenizer: "PreTrainedTokenizerBase",
    messages: Sequence[Message],
    tools: Sequence[ToolSchema] | None,
    *,
    add_generation_prompt: bool,
) -> list[int]:
    """Token ids of a conversation, as a model of this tokenizer is prompted with it; raises as `prefix_texts`."""
    return encode(tokenizer, render_text(tokenizer, messages, tools, add_generation_prompt))


def not_prefix_preserving(index: int) -> TemplateError:
    """The error of a template that renders what precedes message `index` differently once more follows."""
    return TemplateError(
        f"the chat template is not prefix preserving at message {index}: the conversation up to it is rendered "
        f"differently once more follows; use a template that renders every turn the same wherever it stands"
    )


def first_difference(text: str, other: str) -> int:
    """Number of characters with which both texts begin."""
    pairs = enumerate(zip(text, other, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(text), len(other)))


def _texts(conversation: Prefixes, rendered: RenderedPrefixes) -> Iterator[str]:
    yield from rendered.texts
    if rendered.refusal is not None:
        end, _ = conversation.prefixes[len(rendered.texts)]
        roles = ", ".join(message["role"] for message in conversation.messages[:end])
        raise TemplateError(f"the chat template refuses a conversation with roles [{roles}]: {rendered.refusal}")


def _prepare(conversation: Prefixes) -> Prefixes | str:
    """The conversation in the form that templates read, or why it has none."""
    messages, tools, prefixes = conversation
    if not all(end for end, _ in prefixes):
        return "it has no message"
    try:
        return Prefixes([_template_message(message) for message in messages], tools, prefixes)
    except (AttributeError, KeyError, TypeError) as error:
        return (
            f"a message is not in the OpenAI form: {type(error).__name__}: {error}; expected tool calls with a "
            f"function's name and arguments, and text beside a malformed one"
        )


def _template_message(message: Mapping[str, Any]) -> JsonObject:
    """The message as templates read it.

    Arguments of calls are objects, malformed calls are back in the text they came from, and reasoning has all of its
    names, since each template knows one of them. A message with calls has content, if only an empty text, which some
    templates read unasked. Null keys are left out: many templates would write `None`.
    """
    shown = dict(message)
    if reasoning := message.get("reasoning_content") or message.get("reasoning"):
        shown |= {"reasoning_content": reasoning, "reasoning": reasoning, "thinking": reasoning}
    if calls := message.get("tool_calls"):
        kept: list[JsonObject] = []
        texts = [message.get("content") or ""]
        for call in calls:
            function = dict(call["function"])
            if function["name"] == MALFORMED_CALL:
                texts.append(function["arguments"])
            else:
                kept.append({**call, "function": {**function, "arguments": _parsed(function["arguments"])}})
        shown |= {"content": "\n".join(text for text in texts if text), "tool_calls": kept or None}
    return {key: value for key, value in shown.items() if value is not None}


def _parsed(arguments: Any) -> Any:
    """The JSON object in `arguments`; unchanged where it is none."""
    if not isinstance(arguments, str):
        return arguments
    try:
        value = json.loads(arguments)
    except json.JSONDecodeError:
        return arguments
    return value if isinstance(value, dict) else arguments
