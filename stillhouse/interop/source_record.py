"""What a reader finds in a foreign row, and the trajectory made of it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import orjson

from stillhouse.store import digest
from stillhouse.types import ErrorRecord, JsonObject, Message, StopReason, TokenUsage, ToolSchema, Trajectory, Turn


class Unmapped(NamedTuple):
    """One thing that was read and has no place in what is written."""

    reason: str
    """The same words for the same cause, so that causes can be counted."""
    key: str | None = None
    """Where it stood in its row or file; None for a whole row."""
    value: Any = None
    """As it was read; never a secret."""


@dataclass(slots=True)
class Conversation:
    """One conversation of a foreign row."""

    messages: list[Message]
    """In the OpenAI form."""
    num_prompt: int
    """The first so many messages are the prompt; what follows was sampled, or came from tools and users meanwhile."""
    metadata: JsonObject = field(default_factory=dict)
    """What belongs to the prompt."""
    tools: list[str] | None = None
    """Names of the tools offered; None where the row does not say."""
    schemas: list[ToolSchema] | None = None
    """Their schemas, where the row has them."""
    model: str | None = None
    """Who wrote it, where the row says so."""
    usage: TokenUsage = field(default_factory=TokenUsage)
    """Tokens of the whole conversation's completions, as far as they are known."""
    is_truncated: bool = False
    """It was cut off by a bound on tokens."""
    failure: ErrorRecord | None = None
    """How its rollout failed, if it did."""

    @property
    def stop_reason(self) -> StopReason:
        """Why it ended, as far as its last message shows."""
        last = self.messages[-1] if self.messages else None
        is_answer = last is not None and last["role"] == "assistant" and not last.get("tool_calls")
        if self.failure is not None:
            return StopReason.ERROR
        if self.is_truncated:
            return StopReason.LENGTH if is_answer else StopReason.CONTEXT_OVERFLOW
        return StopReason.ANSWERED if is_answer else StopReason.MAX_TURNS


@dataclass(slots=True)
class Read:
    """What one foreign row holds."""

    conversations: list[Conversation] = field(default_factory=list)
    """Empty for a row that is left out; `unmapped` then says why."""
    unmapped: list[Unmapped] = field(default_factory=list)


ReadRow = Callable[[JsonObject], Read]
"""A reader of one format; raises RowProblem for a row that is not of it."""


def take(row: JsonObject, reasons: dict[str, str]) -> list[Unmapped]:
    """Removes the keys of `reasons` from `row`; an account of those that held something."""
    taken = [(key, row.pop(key)) for key in reasons if key in row]
    return [Unmapped(reasons[key], key, value) for key, value in taken if value not in (None, [], {}, "")]


def trajectory_of(
    conversation: Conversation, prompt_id: str, sample_index: int, schemas: list[ToolSchema], model: str
) -> Trajectory:
    """The record of a conversation that was sampled elsewhere.

    Its key hashes what it is, since nobody knows how it was sampled: a rollout read twice is one trajectory. Tokens are
    attributed to turns where there is one turn to attribute them to.
    """
    stop_reason = conversation.stop_reason
    key = digest(["converted", prompt_id, sample_index, conversation.messages, schemas, model, stop_reason.value])
    return Trajectory(
        rollout_key=key,
        prompt_id=prompt_id,
        sample_index=sample_index,
        messages=conversation.messages,
        tools=schemas,
        turns=_turns(conversation, model),
        stop_reason=stop_reason,
        model=model,
        error=conversation.failure,
    )


def _turns(conversation: Conversation, model: str) -> list[Turn]:
    sampled = conversation.messages[conversation.num_prompt :]
    places = [index for index, message in enumerate(sampled) if message["role"] == "assistant"]
    ends = [*places, len(sampled)][1:]
    return [
        Turn(
            finish_reason=_finish_reason(conversation, sampled[place], is_last=place == places[-1]),
            usage=conversation.usage if len(places) == 1 else {},
            latency_s=None,
            model=model,
            num_tool_errors=sum(map(_is_error, sampled[place + 1 : end])),
        )
        for place, end in zip(places, ends, strict=True)
    ]


def _finish_reason(conversation: Conversation, message: Message, *, is_last: bool) -> str:
    if message.get("tool_calls"):
        return "tool_calls"
    return "length" if is_last and conversation.is_truncated else "unknown"


def _is_error(message: Message) -> bool:
    """Whether a tool's result is an error in the form that rnow and its scripts write: an object of the key `error`."""
    content = message.get("content")
    if message["role"] != "tool" or not isinstance(content, str) or not content.startswith("{"):
        return False
    try:
        value = orjson.loads(content)
    except orjson.JSONDecodeError:
        return False
    return isinstance(value, dict) and list(value) == ["error"]
