"""Messages rendered by a chat template, as text or as the tokens of a prompt."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from stillhouse.chat.message_form import reads_literal_calls, template_message
from stillhouse.chat.rendering import Prefixes, RenderedPrefixes, TemplateError, render_prefixes
from stillhouse.chat.tokenizer import encode
from stillhouse.types import Message, Tools

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def prefix_texts(tokenizer: "PreTrainedTokenizerBase", conversations: Sequence[Prefixes]) -> Iterator[Iterator[str]]:
    """Yield the texts of some prefixes of each conversation, whose messages are in the OpenAI form.

    Raises ConfigError if the template exceeds a limit of time, length or memory. The texts of one conversation raise
    TemplateError in place of the first prefix that the template refuses.
    """
    prepared = [_prepare(tokenizer, conversation) for conversation in conversations]
    rendered = render_prefixes(tokenizer, [item for item in prepared if isinstance(item, Prefixes)])
    for conversation, item in zip(conversations, prepared, strict=True):
        yield _texts(conversation, next(rendered) if isinstance(item, Prefixes) else RenderedPrefixes([], item))


def render_text(
    tokenizer: "PreTrainedTokenizerBase", messages: Sequence[Message], tools: Tools, add_generation_prompt: bool
) -> str:
    """Return the text of a conversation; raises as `prefix_texts`."""
    (texts,) = prefix_texts(tokenizer, [Prefixes(messages, tools, [(len(messages), add_generation_prompt)])])
    return next(texts)


def render(
    tokenizer: "PreTrainedTokenizerBase", messages: Sequence[Message], tools: Tools, *, add_generation_prompt: bool
) -> list[int]:
    """Return the token ids with which a model of this tokenizer is prompted; raises as `prefix_texts`."""
    return encode(tokenizer, render_text(tokenizer, messages, tools, add_generation_prompt))


def not_prefix_preserving(index: int) -> TemplateError:
    """Return the error of a template that renders what precedes message `index` differently once more follows."""
    return TemplateError(
        f"the chat template is not prefix preserving at message {index}: the conversation up to it is rendered "
        f"differently once more follows; use a template that renders every turn the same wherever it stands"
    )


def first_difference(text: str, other: str) -> int:
    """Return the number of characters with which both texts begin."""
    pairs = enumerate(zip(text, other, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(text), len(other)))


def _texts(conversation: Prefixes, rendered: RenderedPrefixes) -> Iterator[str]:
    yield from rendered.texts
    if rendered.refusal is not None:
        end, _ = conversation.prefixes[len(rendered.texts)]
        roles = ", ".join(message["role"] for message in conversation.messages[:end])
        raise TemplateError(f"the chat template refuses a conversation with roles [{roles}]: {rendered.refusal}")


def _prepare(tokenizer: "PreTrainedTokenizerBase", conversation: Prefixes) -> Prefixes | str:
    """Return the conversation in the form that templates read, or why it has none."""
    messages, tools, prefixes = conversation
    if not all(end for end, _ in prefixes):
        return "it has no message"
    try:
        is_literal = any(message.get("tool_calls") for message in messages) and reads_literal_calls(tokenizer)
        return Prefixes([template_message(message, is_literal=is_literal) for message in messages], tools, prefixes)
    except (AttributeError, KeyError, TypeError) as error:
        return (
            f"a message is not in the OpenAI form: {type(error).__name__}: {error}; expected tool calls with a "
            f"function's name and arguments, and text beside a malformed one"
        )
