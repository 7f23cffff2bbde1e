"""A trajectory's messages as a person reads them."""

import json
from dataclasses import dataclass

from stillhouse.tracking.report.data import SampleTrajectory
from stillhouse.types import Message, ToolCall


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


_SUMMARY_CHARS = 110


def view(trajectory: SampleTrajectory) -> TrajectoryView:
    """What the page shows of a trajectory."""
    messages = [_message(message) for message in trajectory.messages]
    asked = next((message.content for message in messages if message.role == "user"), "")
    summary = " ".join(asked.split())
    if len(summary) > _SUMMARY_CHARS:
        summary = summary[:_SUMMARY_CHARS].rstrip() + " \u2026"
    return TrajectoryView(
        stage=trajectory.stage,
        stop_reason=trajectory.stop_reason,
        verdict={True: "right", False: "wrong", None: "unverified"}[trajectory.verified],
        summary=summary or "(no user message)",
        num_turns=sum(message.role == "assistant" for message in messages),
        messages=messages,
    )


def _message(message: Message) -> MessageView:
    return MessageView(
        role=message["role"],
        content=_text(message.get("content")),
        reasoning=_text(message.get("reasoning_content")),
        calls=[_call(call) for call in message.get("tool_calls") or []],
    )


def _text(content: object) -> str:
    """Content is text, None, or a list of parts where an endpoint speaks several modalities."""
    if content is None:
        return ""
    return content if isinstance(content, str) else json.dumps(content, ensure_ascii=False, indent=2)


def _call(call: ToolCall) -> CallView:
    name, raw = call["function"]["name"], call["function"]["arguments"]
    try:
        arguments = json.loads(raw)
    except (TypeError, ValueError):
        arguments = None
    if not isinstance(arguments, dict):
        return CallView(name, _text(raw), malformed=True)
    shown = (f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in arguments.items())
    return CallView(name, ", ".join(shown), malformed=False)
