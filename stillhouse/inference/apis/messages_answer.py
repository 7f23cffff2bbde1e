"""Answers of Anthropic's Messages API, in the form of chat completions."""

import logging
from typing import Any, Final

from stillhouse.store import exact_json
from stillhouse.types import JsonObject

_LOG = logging.getLogger(__name__)
_OBJECTIONS: Final = frozenset({"frontier_llm", "reasoning_extraction"})


def as_chat(body: JsonObject) -> JsonObject:
    """Return the body of a message."""
    if not isinstance(body.get("content"), list):
        return body
    blocks = [block for block in body["content"] if isinstance(block, dict)]
    message: JsonObject = {
        "content": _texts(blocks, "text") or None,
        "reasoning_content": _texts(blocks, "thinking") or None,
        "tool_calls": [
            {
                "id": block.get("id"),
                "type": "function",
                "function": {"name": block.get("name"), "arguments": exact_json.dumps(block.get("input")).decode()},
            }
            for block in blocks
            if block.get("type") == "tool_use"
        ],
    }
    # Claude may end its turn without a word, which is an answer.
    if not blocks or any(block.get("type") != "text" for block in blocks):
        message["sent_back"] = {"blocks": blocks}
    choice = {"message": message, "finish_reason": _finish_reason(body)}
    return {**body, "choices": [choice]}


def _finish_reason(body: JsonObject) -> Any:
    reason, details = body.get("stop_reason"), body.get("stop_details")
    category = details.get("category") if isinstance(details, dict) else None
    if reason != "refusal" or not category:
        return reason
    if category in _OBJECTIONS:
        _LOG.warning(
            "Anthropic refused a prompt as %r, since it objects to this use of its models: read its terms before you "
            "buy more (https://www.anthropic.com/legal/commercial-terms)",
            category,
        )
    return f"{reason}: {category}"


def _texts(blocks: list[JsonObject], kind: str) -> str:
    said = (block.get(kind) for block in blocks if block.get("type") == kind)
    return "".join(text for text in said if isinstance(text, str))
