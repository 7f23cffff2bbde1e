"""Totals of a trajectory over its turns."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from stillhouse.types import Message, Trajectory

Number = TypeVar("Number", int, float)


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over turns; None unless every turn reports its part."""

    prompt_tokens: int | None
    completion_tokens: int | None
    reasoning_tokens: int | None
    cached_tokens: int | None
    cost_usd: float | None
    latency_s: float | None
    num_tool_calls: int
    num_tool_results: int
    """Calls that ran, with a result or an error; refused and unanswered ones do not count."""
    num_tool_errors: int
    providers: list[str]
    """Distinct, in order of appearance."""


def totals_of(trajectory: Trajectory) -> Totals:
    """Return the totals of `trajectory`, without tool calls in the prompt."""
    turns, sampled = trajectory.turns, sampled_part(trajectory)
    return Totals(
        prompt_tokens=_sum(turn.usage.get("prompt_tokens") for turn in turns),
        completion_tokens=completion_tokens(trajectory),
        reasoning_tokens=_sum(turn.usage.get("reasoning_tokens") for turn in turns),
        cached_tokens=_sum(turn.usage.get("cached_tokens") for turn in turns),
        cost_usd=_sum(turn.cost_usd for turn in turns),
        latency_s=_sum(turn.latency_s for turn in turns),
        num_tool_calls=sum(len(message.get("tool_calls") or ()) for message in sampled),
        num_tool_results=sum(message["role"] == "tool" for message in sampled)
        - sum(turn.num_refused_calls for turn in turns),
        num_tool_errors=sum(turn.num_tool_errors for turn in turns),
        providers=list(dict.fromkeys(turn.provider for turn in turns if turn.provider is not None)),
    )


def sampled_part(trajectory: Trajectory) -> list[Message]:
    """Return the messages from the first sampled one: the last `len(turns)` of the assistant, and all between."""
    return trajectory.messages[num_given(trajectory.messages, len(trajectory.turns)) :]


def prompt_part(trajectory: Trajectory) -> list[Message]:
    """Return the messages before the first sampled one."""
    return trajectory.messages[: num_given(trajectory.messages, len(trajectory.turns))]


def num_given(messages: Sequence[Message], num_turns: int) -> int:
    """Return the number of messages before the first of the last `num_turns` assistant messages."""
    missing = num_turns
    place = len(messages)
    while missing > 0 and place > 0:
        place -= 1
        missing -= messages[place]["role"] == "assistant"
    return place


def completion_tokens(trajectory: Trajectory) -> int | None:
    """Return the tokens sampled, as the endpoint counted or else by the token ids it returned."""
    return _sum(
        turn.usage.get("completion_tokens", None if turn.completion_ids is None else len(turn.completion_ids))
        for turn in trajectory.turns
    )


def _sum(parts: Iterable[Number | None]) -> Number | None:
    total: Number | None = None
    for part in parts:
        if part is None:
            return None
        total = part if total is None else total + part
    return total
