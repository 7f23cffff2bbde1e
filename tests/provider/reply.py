"""Requests as a script sees them, and its replies."""

from collections.abc import Callable
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
