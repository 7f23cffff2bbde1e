"""Chat templates are rendered in a process of their own, which is killed when one takes too long.

A template comes with a model and is a program: an endless loop or a string of ten gigabytes would otherwise take the
training or the server down with it. A round trip to the process costs a tenth of a millisecond, as much as rendering a
short conversation, so conversations are sent in batches.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from stillhouse.errors import ConfigError
from stillhouse.processes.worker_pool import WorkerFailed, WorkerPool, WorkerTimeout
from stillhouse.types import JsonObject, Tools

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

MAX_RENDER_S: Final = 10.0
"""Time limit of one batch in seconds; usual templates take a millisecond for a conversation."""
_MAX_PREFIX_S: Final = 0.1
"""Added to the limit for each prefix that is rendered, in seconds."""
_BATCH_SIZE: Final = 32
"""Conversations per batch."""


class TemplateError(ValueError):
    """A conversation that the chat template cannot render, or renders in a way that masks cannot follow."""


class Prefixes(NamedTuple):
    """A conversation and which of its prefixes to render."""

    messages: Sequence[Mapping[str, Any]]
    """The whole conversation."""
    tools: Tools
    prefixes: Sequence[tuple[int, bool]]
    """Number of messages of each prefix, and whether a generation prompt follows them."""


class RenderedPrefixes(NamedTuple):
    """The rendered prefixes of one conversation."""

    texts: list[str]
    """One for each prefix, up to the first that the template refuses."""
    refusal: str | None
    """The template's error for that one."""


def render_prefixes(
    tokenizer: "PreTrainedTokenizerBase", conversations: Sequence[Prefixes], max_s: float = MAX_RENDER_S
) -> Iterator[RenderedPrefixes]:
    """Yield the rendered prefixes of many conversations, one result per conversation in order.

    The limit of a batch is `max_s` seconds plus `_MAX_PREFIX_S` for each prefix. Raises ConfigError if the template
    exceeds it, or a limit of length or memory.
    """
    for first in range(0, len(conversations), _BATCH_SIZE):
        batch = conversations[first : first + _BATCH_SIZE]
        timeout_s = max_s + _MAX_PREFIX_S * sum(len(conversation.prefixes) for conversation in batch)
        response = _response(tokenizer, _request(tokenizer, batch), timeout_s)
        if "limit" in response:
            raise _limit_exceeded(tokenizer, response["limit"])
        for rendered in response["conversations"]:
            texts: list[str] = []
            for shared, rest in rendered["texts"]:
                texts.append(texts[-1][:shared] + rest if shared else rest)
            yield RenderedPrefixes(texts, rendered["refusal"])


def start_rendering() -> None:
    """Start the process that renders, where something else is to be loaded before the first conversation."""
    _workers().start_one()


def _request(tokenizer: "PreTrainedTokenizerBase", conversations: Sequence[Prefixes]) -> JsonObject:
    # A tokenizer may have one template for conversations with tools and another for those without.
    templates: dict[str, int] = {}
    items = []
    for messages, tools, prefixes in conversations:
        source = tokenizer.get_chat_template(tools=list(tools) if tools else None)
        index = templates.setdefault(source, len(templates))
        items.append({"template": index, "messages": messages, "tools": tools or None, "prefixes": prefixes})
    return {"templates": list(templates), "variables": tokenizer.special_tokens_map, "conversations": items}


def _response(tokenizer: "PreTrainedTokenizerBase", request: JsonObject, timeout_s: float) -> Any:
    failure: WorkerFailed | None = None
    # Twice, since another process may have ended the worker while it was idle.
    for _ in range(2):
        try:
            return _workers().request(request, timeout_s)
        except WorkerTimeout as error:
            raise _limit_exceeded(tokenizer, f"more than {timeout_s:g} s") from error
        except WorkerFailed as error:
            failure = error
    raise _limit_exceeded(tokenizer, f"a process that does not survive it: {failure}") from failure


def _limit_exceeded(tokenizer: "PreTrainedTokenizerBase", need: str) -> ConfigError:
    name = tokenizer.name_or_path or "this tokenizer"
    return ConfigError(
        f"the chat template of {name} needs {need}, which no sound template does. Look for loops, recursion and "
        "repeated strings in its chat_template.jinja or tokenizer_config.json, and replace the template, or use a "
        "model from a source you trust"
    )


@cache
def _workers() -> WorkerPool:
    return WorkerPool("stillhouse.chat.rendering_helper")
