"""Assistants' messages as they are sent, without the keys that an endpoint refuses.

Sellers differ in both directions: DeepSeek, Kimi, Gemini and OpenRouter demand keys of their own back, and Mistral,
Groq and Cerebras refuse any that they do not know (docs/concepts/rollouts.md). So keys that no seller demands are left
out at once, and one that is refused by name from then on.
"""

import re
from collections.abc import Sequence, Set
from dataclasses import replace
from typing import Any, Final, cast

from stillhouse.chat.content import REASONING_KEYS
from stillhouse.inference.failures import Failure, FailureKind
from stillhouse.inference.negotiation.terms import Asked, Terms
from stillhouse.types import JsonObject, Message

_PLAIN: Final = frozenset({"role", "content", "tool_calls", "id", "type", "function", "arguments", "name"})
_KEYS: Final = (
    _PLAIN
    | {*REASONING_KEYS, "reasoning_opaque", "refusal"}
    # Gemini's signatures of its thoughts; OpenAI-compatible gateways keep them in the second.
    | {"extra_content", "thought_signature"}
    # A prompt's own: beginnings of answers (Mistral and DeepSeek, Kimi and Qwen), Anthropic's marks of its cache.
    | {"prefix", "partial", "cache_control"}
)
_CALL_KEYS: Final = _KEYS | {"provider_specific_fields"}
"""Of calls, in which LiteLLM keeps Gemini's signatures under the last key."""
REFUSING: Final = re.compile(
    r"extra_forbidden|extra inputs?|not (?:permitted|allowed|supported|valid|enabled)|unsupported|unknown"
    r"|unrecogni[sz]ed|unexpected|deprecated|cannot both|additional propert|cannot find field|does not support"
    r"|invalid (?:key|field|parameter|argument)|may only be set",
    re.IGNORECASE,
)
_DEMANDING: Final = re.compile(r"\bmissing\b|must be (?:passed|provided|included|sent)|\brequired\b", re.IGNORECASE)


def resent(messages: Sequence[Message], refused: Set[str] = frozenset()) -> list[Message]:
    """Return the messages as they are sent: the assistant's with keys that a seller may want, less those `refused`."""
    return [_resent(message, refused) if message["role"] == "assistant" else message for message in messages]


def with_key(terms: Terms, failure: Failure, asked: Asked) -> tuple[Terms, str] | None:
    """Return the terms after a refusal of a key of assistants' messages, and the change; None if it is of another."""
    text, messages = failure.message, asked.body.get("messages", [])
    if not REFUSING.search(text) or _DEMANDING.search(text):
        return None
    key = next((key for key in _named_keys(text) if resent(messages, {key}) != messages), None)
    if key is None:
        return None
    changed = replace(terms, refused_keys=[*terms.refused_keys, key])
    return changed, f"messages of the assistant go without the key {key!r}"


def demanded_keys(failure: Failure) -> set[str]:
    """Return the keys of the assistant's messages whose absence a refusal names."""
    if failure.kind is not FailureKind.PERMANENT or not _DEMANDING.search(failure.message):
        return set()
    return set(_named_keys(failure.message))


def _named_keys(text: str) -> list[str]:
    return [word for word in re.findall(r"\w+", text) if word in _CALL_KEYS - _PLAIN]


def _resent(message: Message, refused: Set[str]) -> Message:
    shown: JsonObject = {"content": None, **message, **message.get("sent_back", {})}
    kept = _KEYS - refused
    sent = {key: value for key, value in shown.items() if key in kept and (value is not None or key == "content")}
    if calls := sent.get("tool_calls"):
        sent["tool_calls"] = [_with_keys(call, _CALL_KEYS - refused) for call in calls]
    return cast(Message, sent)


def _with_keys(value: Any, keys: Set[str]) -> Any:
    """Return an object, and those under its key `function`, with these keys alone."""
    if not isinstance(value, dict):
        return value
    return {key: _with_keys(one, keys) if key == "function" else one for key, one in value.items() if key in keys}
