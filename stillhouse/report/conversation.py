"""Conversations as pages show them: plain text, cut to what fits, laid out by conversation.html.j2."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Self

from stillhouse.chat.content import Call, calls_of, reasoning_of
from stillhouse.types import Message

_QUESTION_CHARS: Final = 110
_MAX_CHARS: Final = 4000
_MAX_MESSAGES: Final = 40
_MAX_CALLS: Final = 20
_FOLD_CHARS: Final = 1200
"""Longer tool results are folded at first."""
_COMPARED_CHARS: Final = 200
VERDICTS: Final = {True: "right", False: "wrong", None: "unverified"}
_ROLES: Final = frozenset({"system", "user", "assistant", "tool"})


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
    """`left out` for the note that replaces the middle of a long conversation."""
    content: str
    reasoning: str
    calls: list[CallView]

    @property
    def css_class(self) -> str:
        """Return a known role; roles of others never become markup."""
        return self.role if self.role in _ROLES else "other"

    @property
    def is_open(self) -> bool:
        """Return whether the message is unfolded at first."""
        return self.role != "system" and (self.role != "tool" or len(self.content) <= _FOLD_CHARS)

    @property
    def preview(self) -> str:
        """Return one line shown while the message is folded."""
        return one_line(self.content or " ".join(f"{call.name}({call.arguments})" for call in self.calls), 140)


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleTrajectory:
    messages: Sequence[Message]
    stop_reason: str
    verified: bool | None
    """Whether its answer is right; None if unverified."""
    stage: str
    """Model that sampled it: teacher, base, sft, on_policy."""
    comparison: str = ""
    """The line of `comparison` about its answer; empty if nothing was compared."""
    prompt_id: str = ""
    """Answers to one prompt stand side by side; empty for one that stands alone."""

    @property
    def verdict(self) -> str:
        return VERDICTS[self.verified]

    @property
    def question(self) -> str:
        """Return the question, on one line."""
        return question(self.messages, _QUESTION_CHARS) or "(no user message)"

    @property
    def num_turns(self) -> int:
        return sum(message["role"] == "assistant" for message in self.messages)

    @property
    def prompt(self) -> Self:
        """Return the messages before the first answer, as a conversation of their own."""
        return replace(self, messages=self.messages[: self._num_prompt])

    @property
    def answer(self) -> Self:
        """Return the messages from the first answer on, as a conversation of their own."""
        return replace(self, messages=self.messages[self._num_prompt :])

    @property
    def _num_prompt(self) -> int:
        roles = [message["role"] for message in self.messages]
        return roles.index("assistant") if "assistant" in roles else len(roles)

    @property
    def views(self) -> list[MessageView]:
        """Return the messages as pages show them, without the middle of a long conversation."""
        num_left_out = len(self.messages) - _MAX_MESSAGES
        if num_left_out <= 0:
            return [_message_view(message) for message in self.messages]
        half = _MAX_MESSAGES // 2
        gap = MessageView("left out", f"{num_left_out:,} messages", "", [])
        return [*map(_message_view, self.messages[:half]), gap, *map(_message_view, self.messages[-half:])]


def comparison(row: Mapping[str, Any]) -> str:
    """Return what of an answer was compared with what, the verdict, and why, in words; empty without any of these.

    `row` has the columns `expected_answer`, `verified`, `compared` and `verification` of a dataset.
    """
    compared, verified, note = row.get("compared"), row.get("verified"), row.get("verification")
    expected = row.get("expected_answer")
    # A solution states its answer at the end.
    target = "" if expected is None else f"expected {_quoted(expected[-_COMPARED_CHARS:])}"
    if compared is not None:
        told = f"compared {_quoted(compared)}{target and f' with {target}'}: {VERDICTS[verified]}"
    else:
        told = f"wrong: {target}" if target and verified is False else ""
    return "; ".join(filter(None, (told, note)))


def _quoted(text: str) -> str:
    return f"\u201c{one_line(text, _COMPARED_CHARS)}\u201d"


def question(messages: Sequence[Message], max_chars: int) -> str:
    """Return the start of the last user message before the first answer, on one line; empty without one."""
    text = ""
    for message in messages:
        if message.get("role") == "assistant" and text:
            break
        if message.get("role") == "user":
            text = _text(message.get("content"))
    return one_line(text, max_chars)


def one_line(text: str, max_chars: int) -> str:
    """Return the start of `text` on one line, with an ellipsis where more follows."""
    line = " ".join(text[: 4 * max_chars].split())
    return line if len(line) <= max_chars else line[:max_chars].rstrip() + "\u2026"


def cut(text: str, max_chars: int = _MAX_CHARS) -> str:
    """Return the start of `text`, with a note of how much more there is."""
    return text if len(text) <= max_chars else f"{text[:max_chars]} \u2026 [{len(text) - max_chars:,} more characters]"


def _message_view(message: Message) -> MessageView:
    calls = calls_of(message)
    views = [_call_view(call) for call in calls[:_MAX_CALLS]]
    if len(calls) > _MAX_CALLS:
        views.append(CallView(f"{len(calls) - _MAX_CALLS:,} more calls", "", malformed=False))
    return MessageView(
        role=message["role"],
        content=cut(_text(message.get("content"))),
        reasoning=cut(reasoning_of(message)),
        calls=views,
    )


def _text(content: object) -> str:
    """Return the text of a content, which is a string, None or a list of parts; parts other than text as JSON."""
    if content is None or isinstance(content, str):
        return content or ""
    parts = content if isinstance(content, list) else [content]
    return "\n".join(
        part["text"]
        if isinstance(part, dict) and isinstance(part.get("text"), str)
        else json.dumps(part, ensure_ascii=False, indent=2)
        for part in parts
    )


def _call_view(call: Call) -> CallView:
    """Return a view of a call; parts that the endpoint left out are empty."""
    try:
        arguments = json.loads(call.arguments)
    except ValueError:
        arguments = None
    if not isinstance(arguments, dict):
        return CallView(call.name, cut(call.arguments), malformed=True)
    pairs = (f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in arguments.items())
    return CallView(call.name, cut(", ".join(pairs)), malformed=False)
