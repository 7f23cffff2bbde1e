"""Answers of OpenAI's Responses API, in the form of chat completions."""

import logging
from datetime import UTC, datetime
from typing import Any, Final

from stillhouse.inference.error_body import classify
from stillhouse.inference.failures import Failure, FailureKind, RequestFailed
from stillhouse.types import JsonObject

_LOG = logging.getLogger(__name__)
_PASSING: Final = frozenset({"server_error", "rate_limit_exceeded", "vector_store_timeout", "server_is_overloaded"})
_CONTENT: Final = frozenset(
    {"invalid_prompt", "bio_policy", "misalignment_policy_violation", "image_content_policy_violation"}
)


def as_chat(body: JsonObject) -> JsonObject:
    """Return the body of a response; raise RequestFailed if it says within HTTP 200 that the model failed."""
    if not isinstance(body.get("output"), list) or body.get("status") == "failed":
        _raise_failure(body)
        return body
    if removed := body.get("input_transformations"):
        _LOG.warning("OpenAI left out some of the model's own reasoning that was sent back: %s", removed)
    items = [item for item in body["output"] if isinstance(item, dict)]
    calls = [item for item in items if item.get("type") == "function_call"]
    said = [item for item in items if item.get("type") == "message"]
    # Comments between calls are no part of the answer that they lead to.
    said = [item for item in said if item.get("phase") == "final_answer"] or said
    parts = [part for item in said for part in item.get("content") or () if isinstance(part, dict)]
    message: JsonObject = {
        "content": "\n\n".join(text for item in said if (text := _texts(item.get("content"), "text"))) or None,
        "reasoning_content": "\n\n".join(filter(None, map(_thoughts, items))) or None,
        "refusal": _texts(parts, "refusal") or None,
        "tool_calls": [
            {
                "id": item.get("call_id"),
                "type": "function",
                "function": {key: item[key] for key in ("name", "arguments") if key in item},
            }
            for item in calls
        ],
    }
    if said or calls:
        message["sent_back"] = {"output": items}
    tokens = [token for part in parts for token in part.get("logprobs") or ()]
    choice = {"message": message, "finish_reason": _finish_reason(body, message)}
    return {**body, "choices": [{**choice, "logprobs": {"content": tokens} if tokens else None}]}


def _raise_failure(body: JsonObject) -> None:
    error: Any = body.get("error")
    code = error.get("code") if isinstance(error, dict) else None
    if code is None or code in _PASSING:
        # Read as any error inside HTTP 200.
        if body.get("status") == "failed" and not error:
            raise RequestFailed(Failure(FailureKind.TRANSIENT, "the response failed; no more is known", 200))
        return
    kind = FailureKind.CONTENT if code in _CONTENT else FailureKind.PERMANENT
    raise RequestFailed(Failure(kind, classify(200, {}, body, datetime.now(UTC)).message + f" ({code})", 200))


def _finish_reason(body: JsonObject, message: JsonObject) -> str | None:
    """Return the reason in a word of chat completions or, where the response is not complete, its own.

    None where it is complete and empty, as servers other than OpenAI's call one that met its limit of tokens.
    """
    status, details = body.get("status") or "completed", body.get("incomplete_details")
    if status != "completed":
        return str((details or {}).get("reason") or status)
    if message["tool_calls"]:
        return "tool_calls"
    return "stop" if message["content"] or message["refusal"] else None


def _thoughts(item: JsonObject) -> str:
    """Return what a reasoning item shows: all of it of open models, of OpenAI's own a summary if it was asked for."""
    if item.get("type") != "reasoning":
        return ""
    return _texts(item.get("content"), "text") or _texts(item.get("summary"), "text", "\n\n")


def _texts(parts: Any, key: str, between: str = "") -> str:
    found = (part.get(key) for part in parts or () if isinstance(part, dict))
    return between.join(text for text in found if isinstance(text, str))
