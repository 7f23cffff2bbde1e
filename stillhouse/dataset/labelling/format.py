"""The label `format_problem`: whether what the model wrote is in the right form."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import orjson

from stillhouse.chat.content import text_of
from stillhouse.dataset.label_input import LabelInput
from stillhouse.dataset.totals import sampled_part
from stillhouse.labels.prose import without_code
from stillhouse.types import Message, Trajectory

_THINK_TAG: Final = re.compile(r"<(/?)(think|thinking)>")
_MARKUP: Final = re.compile(
    r"</?(?:\w+:)?(?:tool_calls?|tool_response|function_calls)>"  # Hermes, Qwen, GLM, MiniMax, Anthropic
    r"|<function=[\w.-]+>"  # Llama 3.1, Qwen3-Coder
    r"|<\|(?:end|[A-Za-z_][\w.]{3,40})\|>"  # special tokens of ChatML, Llama 3, Phi, Harmony
    r"|<\uff5c[^\uff5c\n]{1,40}\uff5c>"  # the same of DeepSeek, with full-width bars
    r"|\[/?(?:TOOL_CALLS|TOOL_RESULTS|AVAILABLE_TOOLS|INST)\]"  # Mistral
    r"|<(?:start|end)_of_turn>"  # Gemma
)
"""Markup of tool calls and turns in chat templates; an endpoint that parses it leaves none in the content."""


def format_labels(inputs: Sequence[LabelInput]) -> Mapping[str, Sequence[Any]]:
    """Return the column format_problem: the first problem in what the model wrote, with its place; null without one.

    Looked for outside of code: mismatched think tags, unclosed code fences, and tool calls or special tokens that an
    endpoint left in the content.
    """
    return {"format_problem": [next(_problems(item.trajectory), None) for item in inputs]}


def _problems(trajectory: Trajectory) -> Iterator[str]:
    sampled = sampled_part(trajectory)
    offered = {tool["function"].get("name") for tool in trajectory.tools}
    for place, message in enumerate(sampled, start=len(trajectory.messages) - len(sampled)):
        if message["role"] == "assistant":
            yield from _content_problems(f"messages[{place}]", message, offered)


def _content_problems(place: str, message: Message, offered: set[str | None]) -> Iterator[str]:
    text = text_of(message)
    prose, open_line = without_code(text)
    if "think" in prose:
        yield from _think_problems(place, prose)
    if open_line is not None:
        yield f"{place}, line {open_line}: a code fence is never closed"
    markup = _MARKUP.search(prose)
    if markup is not None:
        yield f"{place}, {_line(prose, markup)}: {markup[0]} was left in the content"
    if not message.get("tool_calls"):
        name = _called_tool(text)
        if name is not None and name in offered:
            yield f"{place}: the content is a call of the tool {name}"


def _think_problems(place: str, prose: str) -> Iterator[str]:
    opened: re.Match[str] | None = None
    for tag in _THINK_TAG.finditer(prose):
        if not tag[1] and opened is None:
            opened = tag
        elif tag[1] and opened is not None and opened[2] == tag[2]:
            opened = None
        else:
            expected = "no tag" if opened is None else f"</{opened[2]}>"
            yield f"{place}, {_line(prose, tag)}: saw {tag[0]}, expected {expected}"
            return
    if opened is not None:
        yield f"{place}, {_line(prose, opened)}: {opened[0]} is never closed"


def _line(text: str, match: re.Match[str]) -> str:
    return f"line {text.count(chr(10), 0, match.start()) + 1}"


def _called_tool(text: str) -> str | None:
    """Return the name of the tool if the content is the JSON of a call and nothing else."""
    if not text.lstrip().startswith("{"):
        return None
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        return None
    name = value.get("name")
    return name if isinstance(name, str) and ("arguments" in value or "parameters" in value) else None
