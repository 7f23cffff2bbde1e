"""Chat templates are rendered by a process of their own, which is killed when one takes too long.

A template comes with a model and is a program: a loop without end or a string of ten gigabytes in it would otherwise
take the training or the server with it. A question and its answer cost a tenth of a millisecond, as much as rendering a
short conversation, so whoever has many conversations asks for them together.
"""

from collections.abc import Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from stillhouse.errors import ConfigError
from stillhouse.processes.worker_pool import WorkerFailed, WorkerPool, WorkerTimeout
from stillhouse.types import JsonObject, ToolSchema

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

MAX_RENDER_S: Final = 10.0
"""Longest time for one question, in seconds; usual templates take a millisecond for a conversation."""
_MAX_START_S: Final = 0.1
"""Further time for each start of a conversation that is rendered, in seconds."""
_MAX_CONVERSATIONS: Final = 32
"""Conversations of one question."""


class TemplateError(ValueError):
    """A conversation that the chat template cannot render, or renders in a way that masks cannot follow."""


class Starts(NamedTuple):
    """Some starts of one conversation that are to be rendered."""

    messages: Sequence[JsonObject]
    """The whole conversation, as templates read it."""
    tools: Sequence[ToolSchema] | None
    starts: Sequence[tuple[int, bool]]
    """Number of messages of each start, and whether a generation prompt follows them."""


class Texts(NamedTuple):
    """What a template makes of them."""

    texts: list[str]
    """One for each start, up to the first that is refused."""
    refused: str | None
    """What the template says of that one."""


def render_starts(
    tokenizer: "PreTrainedTokenizerBase", conversations: Sequence[Starts], max_s: float = MAX_RENDER_S
) -> Iterator[Texts]:
    """The texts of some starts of conversations.

    Args:
        tokenizer: Tokenizer whose template is used.
        conversations: What is rendered.
        max_s: Longest time in seconds for `_MAX_CONVERSATIONS`, to which each start adds `_MAX_START_S`.

    Yields:
        The texts of one conversation after the other.

    Raises:
        ConfigError: If the template reaches a limit of time, length or memory.
    """
    for first in range(0, len(conversations), _MAX_CONVERSATIONS):
        some = conversations[first : first + _MAX_CONVERSATIONS]
        timeout_s = max_s + _MAX_START_S * sum(len(one.starts) for one in some)
        answer = _ask(tokenizer, _question(tokenizer, some), timeout_s)
        if "limit" in answer:
            raise _beyond(tokenizer, answer["limit"])
        for one in answer["conversations"]:
            yield Texts(_whole(one["texts"]), one["refused"])


def _question(tokenizer: "PreTrainedTokenizerBase", conversations: Sequence[Starts]) -> JsonObject:
    # A tokenizer may have a template for conversations with tools and another for those without.
    templates: dict[str, int] = {}
    asked = []
    for messages, tools, starts in conversations:
        source = tokenizer.get_chat_template(tools=list(tools) if tools else None)
        place = templates.setdefault(source, len(templates))
        asked.append({"template": place, "messages": messages, "tools": tools or None, "starts": starts})
    return {"templates": list(templates), "variables": tokenizer.special_tokens_map, "conversations": asked}


def _whole(pieces: Sequence[tuple[int, str]]) -> list[str]:
    texts: list[str] = []
    for shared, rest in pieces:
        texts.append(texts[-1][:shared] + rest if shared else rest)
    return texts


def _ask(tokenizer: "PreTrainedTokenizerBase", question: JsonObject, timeout_s: float) -> Any:
    try:
        try:
            return _helpers().request(question, timeout_s)
        except WorkerTimeout:
            raise
        except WorkerFailed:
            # Another process may have ended it while it was idle.
            return _helpers().request(question, timeout_s)
    except WorkerTimeout as error:
        raise _beyond(tokenizer, f"more than {timeout_s:g} s") from error
    except WorkerFailed as error:
        raise _beyond(tokenizer, f"a process that does not survive it: {error}") from error


def _beyond(tokenizer: "PreTrainedTokenizerBase", what: str) -> ConfigError:
    name = tokenizer.name_or_path or "this tokenizer"
    return ConfigError(
        f"the chat template of {name} needs {what}, which no sound template does. Look for loops, recursion and "
        "repeated strings in its chat_template.jinja or tokenizer_config.json, and replace the template, or use a "
        "model from a source you trust"
    )


@cache
def _helpers() -> WorkerPool:
    return WorkerPool("stillhouse.chat.rendering_helper")
