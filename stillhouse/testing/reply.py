"""Requests as a script sees them, and its replies."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import orjson

Fault = Literal["none", "reset", "cut", "hang", "close"]


@dataclass(frozen=True, slots=True)
class Reply:
    body: dict[str, Any] | bytes
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    delay_s: float = 0.0
    """Time before the answer."""
    fault: Fault = "none"
    """`reset` drops the connection and `close` ends it, both in place of the answer; `cut` stops in the middle of the
    body; `hang` never answers."""
    tokens: int = 0
    """Tokens of prompt and completion, which a limit on actual tokens counts."""
    sampled: bool = True
    """True if tokens were sampled, and so billed, where the status is 200."""


@dataclass(frozen=True)
class ReceivedRequest:
    """A request as the script sees it."""

    raw: bytes
    digest: str
    attempt: int
    """Equal requests before this one."""
    index: int
    """Requests of any kind before this one."""
    authorization: str
    path: str = "/v1/chat/completions"

    @cached_property
    def body(self) -> dict[str, Any]:
        body: dict[str, Any] = orjson.loads(self.raw)
        return body

    @property
    def num_turns(self) -> int:
        """Return the number of completions in its conversation so far."""
        return sum(message["role"] == "assistant" for message in self.body["messages"])


Script = Callable[[ReceivedRequest], Reply]


def completion(
    content: str | None = None,
    *,
    tool_calls: Sequence[tuple[str, str]] = (),
    finish_reason: str | None = None,
    completion_tokens: int | None = 5,
    message: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the body of a chat completion in OpenAI's form.

    `tool_calls` are pairs of a name and arguments as JSON text; `finish_reason` is then `tool_calls`, else `stop`.
    `completion_tokens` are the reported usage, None reports none; `message` holds further keys of the message.
    """
    calls = [
        {"id": f"call_{index}", "type": "function", "function": {"name": name, "arguments": arguments}}
        for index, (name, arguments) in enumerate(tool_calls)
    ]
    reply = {"role": "assistant", "content": content, "refusal": None, **({"tool_calls": calls} if calls else {})}
    usage = {"prompt_tokens": 7, "completion_tokens": completion_tokens, "total_tokens": 7 + (completion_tokens or 0)}
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "simulated-1",
        "choices": [
            {
                "index": 0,
                "message": {**reply, **(message or {})},
                "finish_reason": finish_reason or ("tool_calls" if calls else "stop"),
            }
        ],
        **({} if completion_tokens is None else {"usage": usage}),
    }


def error(
    status: int,
    message: str,
    *,
    code: str | int | None = None,
    kind: str | None = None,
    headers: dict[str, str] | None = None,
) -> Reply:
    body = {"error": {"message": message, "type": kind, "param": None, "code": code}}
    return Reply(body, status, headers or {})
