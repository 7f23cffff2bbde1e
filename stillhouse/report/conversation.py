"""A trajectory's messages as a person reads them: plain text, and no more of it than a page bears.

Tool calls are those of trajectories, whose arguments are text, or of a dataset's rows, whose arguments are objects.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from stillhouse.report.data import SampleTrajectory
from stillhouse.types import Message


@dataclass(frozen=True, slots=True)
class CallView:
    """A tool call as a line of code: `calculator(expression="2 * 3")`."""

    name: str
    arguments: str
    malformed: bool
    """The arguments are not a JSON object and are shown as the model wrote them."""


@dataclass(frozen=True, slots=True)
class MessageView:
    """One message; plain text throughout, escaped by the template."""

    role: str
    content: str
    reasoning: str
    calls: list[CallView]


@dataclass(frozen=True, slots=True)
class TrajectoryView:
    """One trajectory, with what its folded line says."""

    stage: str
    stop_reason: str
    verdict: str
    """right, wrong or unverified."""
    summary: str
    """The start of what the user asked."""
    num_turns: int
    messages: list[MessageView]
    """A message of the role `left out` stands for those in the middle of a conversation that has too many."""


_SUMMARY_CHARS: Final = 110
_MAX_CHARS: Final = 4000
_MAX_MESSAGES: Final = 40
_MAX_CALLS: Final = 20


def view(trajectory: SampleTrajectory) -> TrajectoryView:
    """What the page shows of a trajectory."""
    asked = next((_text(message.get("content")) for message in trajectory.messages if message["role"] == "user"), "")
    summary = " ".join(asked[:_MAX_CHARS].split())
    if len(summary) > _SUMMARY_CHARS:
        summary = summary[:_SUMMARY_CHARS].rstrip() + " \u2026"
    return TrajectoryView(
        stage=trajectory.stage,
        stop_reason=trajectory.stop_reason,
        verdict={True: "right", False: "wrong", None: "unverified"}[trajectory.verified],
        summary=summary or "(no user message)",
        num_turns=sum(message["role"] == "assistant" for message in trajectory.messages),
        messages=_messages(trajectory.messages),
    )


def cut(text: str, most: int = _MAX_CHARS) -> str:
    """The start of `text`, with a note of how much more there is."""
    return text if len(text) <= most else f"{text[:most]} \u2026 [{len(text) - most:,} more characters]"


def _messages(messages: Sequence[Message]) -> list[MessageView]:
    num_left_out = len(messages) - _MAX_MESSAGES
    if num_left_out <= 0:
        return [_message(message) for message in messages]
    half = _MAX_MESSAGES // 2
    gap = MessageView("left out", f"{num_left_out:,} messages", "", [])
    return [*map(_message, messages[:half]), gap, *map(_message, messages[-half:])]


def _message(message: Message) -> MessageView:
    calls: list[Any] = [*(message.get("tool_calls") or ())]
    shown = [_call(call) for call in calls[:_MAX_CALLS]]
    if len(calls) > _MAX_CALLS:
        shown.append(CallView(f"{len(calls) - _MAX_CALLS:,} more calls", "", malformed=False))
    return MessageView(
        role=message["role"],
        content=cut(_text(message.get("content"))),
        reasoning=cut(_text(message.get("reasoning_content") or message.get("reasoning"))),
        calls=shown,
    )


def _text(content: object) -> str:
    """Content is text, None, or a list of parts where an endpoint speaks several modalities."""
    if content is None:
        return ""
    return content if isinstance(content, str) else json.dumps(content, ensure_ascii=False, indent=2)


def _call(call: Any) -> CallView:
    """A call as it reads; parts that the endpoint left out are empty."""
    function = call.get("function") if isinstance(call, dict) else None
    told = function if isinstance(function, dict) else {}
    name = _text(told.get("name"))
    arguments = raw = told.get("arguments")
    if isinstance(raw, str):
        try:
            arguments = json.loads(raw)
        except ValueError:
            arguments = None
    if not isinstance(arguments, dict):
        return CallView(name, cut(_text(raw)), malformed=True)
    shown = (f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in arguments.items())
    return CallView(name, cut(", ".join(shown)), malformed=False)
