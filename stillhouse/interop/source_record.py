"""The content of a foreign row, and the trajectory made of it."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from stillhouse.chat.content import tool_error_of
from stillhouse.store import digest
from stillhouse.types import ErrorRecord, JsonObject, Message, StopReason, TokenUsage, ToolSchema, Trajectory, Turn


class Unmapped(NamedTuple):
    """A value of a foreign row or config that cannot be mapped."""

    reason: str
    """The same text for the same cause, so that causes can be counted."""
    key: str | None = None
    """Its key in the row or file; None for a whole row."""
    value: Any = None
    """As read; never a secret."""
    is_approximated: bool = False
    """True where the config does something similar instead, which `reason` describes."""


@dataclass(slots=True)
class SourceConversation:
    messages: list[Message]
    """In the OpenAI form."""
    num_prompt: int
    """Number of messages of the prompt; those after it were sampled, or came from tools and users in between."""
    metadata: JsonObject = field(default_factory=dict)
    tools: list[str] | None = None
    """Names of the tools offered: those of `schemas` where there are some; None if unknown."""
    schemas: list[ToolSchema] | None = None
    model: str | None = None
    usage: TokenUsage = field(default_factory=TokenUsage)
    """Tokens of all completions together, as far as known."""
    is_truncated: bool = False
    """True where a token limit cut it off."""
    failure: ErrorRecord | None = None
    excluded: frozenset[int] = frozenset()
    """Indices of answers that are not to be learnt."""

    def __post_init__(self) -> None:
        if self.schemas:
            self.tools = [schema["function"]["name"] for schema in self.schemas]

    @property
    def stop_reason(self) -> StopReason:
        """Return the stop reason that its last message implies."""
        last = self.messages[-1] if self.messages else None
        is_answer = last is not None and last["role"] == "assistant" and not last.get("tool_calls")
        if self.failure is not None:
            return StopReason.ERROR
        if self.is_truncated:
            return StopReason.LENGTH if is_answer else StopReason.CONTEXT_OVERFLOW
        return StopReason.ANSWERED if is_answer else StopReason.MAX_TURNS


@dataclass(slots=True)
class SourceRecord:
    conversations: list[SourceConversation] = field(default_factory=list)
    """Empty for a row that is left out, for a reason in `unmapped`."""
    unmapped: list[Unmapped] = field(default_factory=list)


ReadRow = Callable[..., SourceRecord]
"""Reads a row of one format; raises RowProblem for a row of another. Those that can be learnt from as they are take
`reads_text`, as `read_messages` does."""


def schemas_of(tools: Iterable[Any]) -> list[Any]:
    """Return the schemas of tools that are described by name, description and parameters."""
    keys = ("name", "description", "parameters")
    functions = ({key: tool[key] for key in keys if tool.get(key) is not None} for tool in tools)
    return [{"type": "function", "function": function} for function in functions]


def pop_unmapped(row: JsonObject, reasons: dict[str, str]) -> list[Unmapped]:
    """Pop the keys of `reasons` from `row`; return those with a value as unmapped."""
    popped = [(key, row.pop(key)) for key in reasons if key in row]
    return [Unmapped(reasons[key], key, value) for key, value in popped if value not in (None, [], {}, "")]


def trajectory_of(
    conversation: SourceConversation, prompt_id: str, sample_index: int, schemas: list[ToolSchema], model: str
) -> Trajectory:
    """Return the trajectory of a conversation that was sampled elsewhere.

    Its key hashes the content, since the sampling settings are unknown: a rollout read twice is one trajectory. Usage
    is recorded only if there is a single turn.
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


def _turns(conversation: SourceConversation, model: str) -> list[Turn]:
    sampled = conversation.messages[conversation.num_prompt :]
    turns = [index for index, message in enumerate(sampled) if message["role"] == "assistant"]
    ends = [*turns, len(sampled)][1:]
    is_cut = {turns[-1]} if turns and conversation.is_truncated else set()
    return [
        Turn(
            finish_reason="tool_calls"
            if sampled[turn].get("tool_calls")
            else "length"
            if turn in is_cut
            else "unknown",
            usage=conversation.usage if len(turns) == 1 else {},
            latency_s=None,
            model=model,
            num_tool_errors=sum(tool_error_of(result) is not None for result in sampled[turn + 1 : end]),
        )
        for turn, end in zip(turns, ends, strict=True)
    ]
