"""The JSON of an endpoint's answer."""

import json
import re
from typing import Any, Final

import orjson

from stillhouse.inference.failures import Failure, FailureKind, RequestFailed
from stillhouse.store import exact_json
from stillhouse.types import JsonObject

_EVENTS: Final = re.compile(rb"(?:data|event|id|retry)?:")
"""How server-sent events begin, a comment included; some gateways do not say so in the type."""
_SEVERAL: Final = (
    "the answer is a stream of events, or several JSON values, expected one completion: set rollouts.extra_body: "
    "{{stream: false}}, or have the gateway in between send whole answers; it begins with {!r}"
)


def parse_body(content: bytes) -> JsonObject:
    """Return the object in an answer's body; raise RequestFailed if it is cut, an unasked stream, or not one object."""
    # A gateway that streams by habit ends a whole object so.
    content = content.strip().removesuffix(b"data: [DONE]")
    if _EVENTS.match(content):
        raise RequestFailed(Failure(FailureKind.PERMANENT, _SEVERAL.format(content[:80]), 200))
    try:
        body = value_of(content)
    except ValueError as error:
        if content.startswith(b"{") and getattr(error, "msg", None) == "Extra data":
            raise RequestFailed(Failure(FailureKind.PERMANENT, _SEVERAL.format(content[:80]), 200)) from error
        message = f"the answer is not valid JSON: {error}; it ends with {content[-80:]!r}"
        raise RequestFailed(Failure(FailureKind.TRANSIENT, message, 200)) from error
    if not isinstance(body, dict):
        raise RequestFailed(Failure(FailureKind.TRANSIENT, f"the answer is not a JSON object: {content[:80]!r}", 200))
    return body


def value_of(content: bytes) -> Any:
    """Return the value of JSON as servers write it; raise ValueError if it is none.

    Unlike orjson it takes NaN and infinities, and half of a surrogate pair, as a completion cut in a character has it.
    """
    try:
        return exact_json.loads(content)
    except orjson.JSONDecodeError:
        # Given bytes, json would take UTF-16 as well, in which keys are not looked for.
        value = json.loads(content.decode("utf-8", "surrogatepass"))
        return json.loads(json.dumps(value, ensure_ascii=False).encode(errors="replace"))
