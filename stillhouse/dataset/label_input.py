"""`LabelInput`: a trajectory with the texts that labellers read."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stillhouse.chat.content import calls_of, reasoning_of, text_of
from stillhouse.dataset.totals import prompt_part, sampled_part
from stillhouse.labels.declare import Texts
from stillhouse.types import PromptMetadata, Trajectory
from stillhouse.verification import final_answer


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelInput(Texts):
    trajectory: Trajectory
    metadata: PromptMetadata | None

    @classmethod
    def of(cls, trajectory: Trajectory, metadata: PromptMetadata | None) -> "LabelInput":
        prompt, sampled = prompt_part(trajectory), sampled_part(trajectory)
        refusal = sampled[-1].get("refusal") if sampled and sampled[-1]["role"] == "assistant" else None
        return cls(
            trajectory=trajectory,
            metadata=metadata,
            answer=final_answer(trajectory.messages) if trajectory.turns else None,
            prompt_text=_joined(text_of(message) for message in prompt if message["role"] in ("system", "user")),
            sampled_text=_joined(
                part
                for message in sampled
                if message["role"] == "assistant"
                for part in (reasoning_of(message), text_of(message), *(call.arguments for call in calls_of(message)))
            ),
            tool_text=_joined(text_of(message) for message in sampled if message["role"] == "tool"),
            refusal=refusal if isinstance(refusal, str) and refusal.strip() else None,
        )


Labeller = Callable[[Sequence[LabelInput]], Mapping[str, Sequence[Any]]]
"""Maps a batch to columns of `schema.LABEL_COLUMNS` by name, one value for each input, in order. Values of JSON columns
are objects, not text. A labeller raises only what should fail the whole stage."""


def _joined(parts: Iterable[str]) -> str:
    return "\n".join(part for part in parts if part)
