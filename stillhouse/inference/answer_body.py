"""The JSON object of an answer with HTTP 200, also where it comes as server-sent events that nobody asked for."""

import json
import re
from typing import Any, Final

import orjson

from stillhouse.inference.failures import Failure, FailureKind, RequestFailed
from stillhouse.store import exact_json
from stillhouse.types import JsonObject

_EVENTS: Final = re.compile(rb"\s*(?:data|event|id|retry)?:")
"""How a body of events begins, a comment included; some gateways do not say so in its type."""
_DONE: Final = b"[DONE]"
_PIECES: Final = frozenset({"content", "reasoning", "reasoning_content", "refusal", "text", "arguments"})
"""Keys of a delta whose texts follow each other; of all others the last value counts."""


def parse_body(content: bytes) -> JsonObject:
    """The object in the body; events are joined into the completion that they spell.

    Raises:
        RequestFailed: the body is cut, or is not one object, or has events of something else.
    """
    if _EVENTS.match(content):
        try:
            return _joined(content)
        except (AttributeError, KeyError, TypeError) as error:
            message = f"the answer is events that are no chunks of a completion; it begins with {content[:80]!r}"
            raise RequestFailed(Failure(FailureKind.PERMANENT, message, 200)) from error
    # A gateway that streams by habit ends a whole object so.
    return _object(content.strip().removesuffix(b"data: " + _DONE))


def _object(content: bytes) -> JsonObject:
    try:
        body = exact_json.loads(content)
    except orjson.JSONDecodeError:
        # A completion cut inside a character carries half of a surrogate pair, which orjson refuses.
        try:
            # Given bytes, json would take UTF-16 as well, in which keys are not looked for.
            body = _repaired(json.loads(content.decode("utf-8", "surrogatepass")))
        except ValueError as error:
            if content.startswith(b"{") and getattr(error, "msg", None) == "Extra data":
                message = f"the answer is several JSON values, expected one completion; it begins with {content[:80]!r}"
                raise RequestFailed(Failure(FailureKind.PERMANENT, message, 200)) from error
            message = f"the answer is not valid JSON: {error}; it ends with {content[-80:]!r}"
            raise RequestFailed(Failure(FailureKind.TRANSIENT, message, 200)) from error
    if not isinstance(body, dict):
        raise RequestFailed(Failure(FailureKind.TRANSIENT, f"the answer is not a JSON object: {content[:80]!r}", 200))
    return body


def _repaired(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", errors="replace").decode("utf-8")
    if isinstance(value, list):
        return [_repaired(item) for item in value]
    if isinstance(value, dict):
        return {_repaired(key): _repaired(item) for key, item in value.items()}
    return value


def _joined(content: bytes) -> JsonObject:
    body: JsonObject = {}
    is_whole = False
    for line in content.splitlines():
        data = line[5:].strip() if line.startswith(b"data:") else b""
        if data == _DONE:
            is_whole = True
        elif data:
            _merge(body, _object(data))
    if body.get("error"):
        return body
    for choice in body["choices"] if body else ():
        is_whole = is_whole or bool(choice.get("finish_reason"))
        choice["message"] = message = choice.pop("delta", None) or choice.get("message") or {}
        for call in message.get("tool_calls") or ():
            call.pop("index", None)
    if not is_whole:
        message = f"the answer is events that end before the completion does, with {content[-80:]!r}"
        raise RequestFailed(Failure(FailureKind.TRANSIENT, message, 200))
    return body


def _merge(body: JsonObject, event: JsonObject) -> None:
    for key, value in event.items():
        held = body.get(key)
        if isinstance(value, dict) and isinstance(held, dict):
            _merge(held, value)
        elif isinstance(value, list) and isinstance(held, list):
            for item in value:
                if (continued := _continued(held, item)) is not None:
                    _merge(continued, item)
                else:
                    held.append(item)
        elif key in _PIECES and isinstance(value, str) and isinstance(held, str):
            body[key] = held + value
        elif held is None or value not in (None, ""):
            body[key] = value


def _continued(held: list[Any], item: Any) -> JsonObject | None:
    """The last entry of a list that `item` continues: by its id, else by its index.

    Gemini and Ollama count all calls of a turn as 0, others give an index with the first piece alone.
    """
    if not isinstance(item, dict):
        return None
    name, index = item.get("id"), item.get("index")
    for one in reversed(held):
        if one.get("id") == name if name and one.get("id") else index is not None and one.get("index") == index:
            return one
    return None
