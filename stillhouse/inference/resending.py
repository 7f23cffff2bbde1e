"""What an assistant's message is sent as, and which of its keys an endpoint refuses.

Sellers differ in both directions: DeepSeek, Kimi, Gemini and OpenRouter demand keys of their own back, and Mistral,
Groq and Cerebras refuse any that they do not know (docs/concepts/rollouts.md). So keys that no seller demands are left
out at once, and one that is refused by name from then on.
"""

import re
from collections.abc import Sequence, Set
from typing import Any, Final, cast

from stillhouse.chat.content import REASONING_KEYS
from stillhouse.inference.failures import Failure, FailureKind
from stillhouse.types import JsonObject, Message

_PLAIN: Final = frozenset({"role", "content", "tool_calls", "id", "type", "function", "arguments", "name"})
_SIGNED: Final = frozenset({"extra_content", "thought_signature"})
"""Where Gemini's signatures of its thoughts are; OpenAI-compatible gateways keep them in the second."""
_KEYS: Final = (
    _PLAIN
    | _SIGNED
    | {*REASONING_KEYS, "reasoning_opaque", "refusal"}
    # A prompt's own: beginnings of answers (Mistral and DeepSeek, Kimi and Qwen), Anthropic's marks of its cache.
    | {"prefix", "partial", "cache_control"}
)
_CALL_KEYS: Final = _PLAIN | _SIGNED | {"provider_specific_fields"}
"""The last one is where LiteLLM keeps Gemini's signatures."""
_REFUSING: Final = re.compile(
    r"extra_forbidden|extra inputs?|not (?:permitted|allowed|supported|valid)|unsupported|unknown|unrecogni[sz]ed"
    r"|unexpected|additional propert|cannot find field|does not support|invalid (?:key|field|parameter|argument)",
    re.IGNORECASE,
)
_DEMANDING: Final = re.compile(r"\bmissing\b|must be (?:passed|provided|included|sent)|\brequired\b", re.IGNORECASE)


def resent(messages: Sequence[Message], refused: Set[str] = frozenset()) -> list[Message]:
    """The messages as they are sent: of the assistant's the keys that a seller may want, less those `refused`."""
    keys, call_keys = _KEYS - refused, _CALL_KEYS - refused
    return [_resent(message, keys, call_keys) if message["role"] == "assistant" else message for message in messages]


def refused_key(failure: Failure, messages: Sequence[Message]) -> str | None:
    """The key of the assistant's messages, as they were sent, that a refusal names; None if it is of another kind."""
    text = failure.message
    if failure.kind is not FailureKind.PERMANENT or not _REFUSING.search(text) or _DEMANDING.search(text):
        return None
    places = {key: re.search(rf"\b{re.escape(key)}\b", text) for key in _keys_in(messages) - _PLAIN}
    named = [(place.start(), key) for key, place in places.items() if place is not None]
    return min(named)[1] if named else None


def _resent(message: Message, keys: Set[str], call_keys: Set[str]) -> Message:
    shown: JsonObject = {"content": None, **message, **message.get("sent_back", {})}
    sent = {key: value for key, value in shown.items() if key in keys and (value is not None or key == "content")}
    if calls := sent.get("tool_calls"):
        sent["tool_calls"] = [_with_keys(call, call_keys) for call in calls]
    return cast(Message, sent)


def _with_keys(value: Any, keys: Set[str]) -> Any:
    """An object, and those that stand under the key `function` in it, with these keys alone."""
    if not isinstance(value, dict):
        return value
    return {key: _with_keys(one, keys) if key == "function" else one for key, one in value.items() if key in keys}


def _keys_in(messages: Sequence[Message]) -> set[str]:
    found: set[str] = set()
    for message in messages:
        if message["role"] == "assistant":
            calls: list[Any] = [call for call in message.get("tool_calls") or () if isinstance(call, dict)]
            found.update(
                message, *calls, *(call["function"] for call in calls if isinstance(call.get("function"), dict))
            )
    return found
