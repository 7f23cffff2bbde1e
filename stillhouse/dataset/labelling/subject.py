"""`Subject`: a trajectory as labellers see it, with the texts they read put together once."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stillhouse.chat.content import calls_of, text_of
from stillhouse.dataset.totals import sampled_part
from stillhouse.types import Message, PromptMetadata, Trajectory
from stillhouse.verification import final_answer


@dataclass(frozen=True, slots=True)
class Subject:
    """A trajectory and its texts."""

    trajectory: Trajectory
    metadata: PromptMetadata | None
    """None where the prompt came without any."""
    answer: str | None
    """The final answer; None where the trajectory did not come to one."""
    prompt_text: str
    """What user and system said before the first sampled message."""
    sampled_text: str
    """What the model wrote in all turns: reasoning, content, and arguments of tool calls."""
    tool_text: str
    """What tools returned."""

    @classmethod
    def of(cls, trajectory: Trajectory, metadata: PromptMetadata | None) -> "Subject":
        """The subject of one trajectory."""
        sampled = sampled_part(trajectory)
        given = trajectory.messages[: len(trajectory.messages) - len(sampled)]
        return cls(
            trajectory=trajectory,
            metadata=metadata,
            answer=final_answer(trajectory.messages) if trajectory.turns else None,
            prompt_text=_joined(text_of(message) for message in given if message["role"] in ("system", "user")),
            sampled_text=_joined(_written(message) for message in sampled if message["role"] == "assistant"),
            tool_text=_joined(text_of(message) for message in sampled if message["role"] == "tool"),
        )


Labeller = Callable[[Sequence[Subject]], Mapping[str, Sequence[Any]]]
"""Measures a batch: names of columns in `schema.LABEL_COLUMNS`, each with one value for each subject, in order. Values
of JSON columns are objects, not text. A labeller raises only what should end the whole stage."""


def _written(message: Message) -> str:
    reasoning = message.get("reasoning_content") or message.get("reasoning") or ""
    return _joined([reasoning, text_of(message), *(call.arguments for call in calls_of(message))])


def _joined(parts: Iterable[str]) -> str:
    return "\n".join(part for part in parts if part)
