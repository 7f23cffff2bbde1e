"""Messages in the form in which chat templates read them."""

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, cast

from stillhouse.chat.content import arguments_text, reasoning_of
from stillhouse.chat.parse import MALFORMED_CALL
from stillhouse.chat.rendering import Prefixes, render_prefixes
from stillhouse.types import JsonObject, Message, ToolCall, ToolSchema

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

ANSWER: Final = "\ue0a1answer\ue0a2"
"""A text that no message holds."""
_PARAMETERS: Final = {"type": "object", "properties": {"a": {"type": "string", "description": "A text."}}}
CALL_PROBE_TOOLS: Final[list[ToolSchema]] = [
    {"type": "function", "function": {"name": "f", "description": "A function.", "parameters": _PARAMETERS}}
]
_CALL: Final[ToolCall] = {
    "id": "call00000",
    "type": "function",
    "function": {"name": "f", "arguments": json.dumps({"a": ANSWER}, ensure_ascii=False)},
}
CALL_PROBE: Final[list[Message]] = [{"role": "user", "content": "a"}, {"role": "assistant", "tool_calls": [_CALL]}]
"""An exchange that ends with a call."""


def template_message(message: Mapping[str, Any], *, is_literal: bool) -> JsonObject:
    """Return the message as templates read it.

    Arguments of calls are objects, malformed calls are back in the text they came from, and reasoning has all of its
    names, since each template knows one of them. A message with calls has content, if only an empty text, which some
    templates read unasked. Null keys are left out: many templates would write `None`. With `is_literal` calls stay as
    the OpenAI API has them: arguments are JSON text, and the content is null where there is no text.
    """
    shown = dict(message)
    if reasoning := reasoning_of(cast(Message, message)):
        shown |= {"reasoning_content": reasoning, "reasoning": reasoning, "thinking": reasoning}
    if calls := message.get("tool_calls"):
        kept: list[JsonObject] = []
        texts = [message.get("content") or ""]
        for call in calls:
            function = dict(call["function"])
            if function["name"] == MALFORMED_CALL:
                texts.append(function["arguments"])
            else:
                text = arguments_text(function["arguments"])
                kept.append({**call, "function": {**function, "arguments": text if is_literal else _parsed(text)}})
        shown |= {"content": "\n".join(text for text in texts if text), "tool_calls": kept or None}
    shown = {key: value for key, value in shown.items() if value is not None}
    return shown | {"content": shown["content"] or None} if is_literal and "tool_calls" in shown else shown


def reads_literal_calls(tokenizer: "PreTrainedTokenizerBase") -> bool:
    """Return whether the template writes calls only in the form of OpenAI's API (DeepSeek-R1-Distill-Llama)."""
    return _reads_literal_calls(tokenizer, str(tokenizer.get_chat_template(tools=list(CALL_PROBE_TOOLS))))


@lru_cache(maxsize=64)
def _reads_literal_calls(tokenizer: "PreTrainedTokenizerBase", template: str) -> bool:
    forms = ([template_message(one, is_literal=is_literal) for one in CALL_PROBE] for is_literal in (False, True))
    requests = [Prefixes(form, CALL_PROBE_TOOLS, [(2, False)]) for form in forms]
    usual, literal = (any(ANSWER in text for text in each.texts) for each in render_prefixes(tokenizer, requests))
    return literal and not usual


def _parsed(arguments: str) -> Any:
    """Return the JSON object in `arguments`; unchanged where it is none."""
    try:
        value = json.loads(arguments)
    except json.JSONDecodeError:
        return arguments
    return value if isinstance(value, dict) else arguments
