"""The parts of a trajectory that a teacher's own template renders: the prompt, the turns, and what is between them."""

from collections.abc import Sequence
from typing import NamedTuple

from stillhouse.training.on_policy.masks import sampled_runs, unsampled_runs
from stillhouse.training.on_policy.teachers.hint import Hint
from stillhouse.training.trajectories import SampledTrajectory
from stillhouse.types import Message, PromptMetadata


class SampledTurn(NamedTuple):
    """One completion of a trajectory."""

    prompt_ids: list[int]
    """What the student read since its last completion, which ends with the generation prompt."""
    ids: list[int]
    """What it sampled."""
    messages: list[Message]
    """From the first sampled message of the trajectory up to this one."""
    replies: list[Message]
    """Tool results or user messages between this turn and the next; none after the last."""


def sampled_turns(trajectory: SampledTrajectory) -> list[SampledTurn]:
    """The completions in order."""
    runs, read = sampled_runs(trajectory), unsampled_runs(trajectory)
    first, *others = _places(trajectory, len(runs))
    turns = []
    for ids, prompt_ids, place, end in zip(runs, read, [first, *others], [*others, None], strict=False):
        replies = [] if end is None else trajectory.messages[place + 1 : end]
        turns.append(SampledTurn(prompt_ids, ids, trajectory.messages[first : place + 1], replies))
    return turns


def prompt_messages(trajectory: SampledTrajectory, hint: Hint | None, metadata: PromptMetadata | None) -> list[Message]:
    """The messages before the sampled ones, with the hint.

    Raises:
        InputError: the prompt lacks metadata that the hint uses.
    """
    first, *_ = _places(trajectory, len(sampled_runs(trajectory)))
    return hinted(trajectory.messages[:first], hint, trajectory.prompt_id, metadata)


def hinted(
    messages: Sequence[Message], hint: Hint | None, prompt_id: str, metadata: PromptMetadata | None
) -> list[Message]:
    """The messages of a prompt with the hint, if any; raises as `prompt_messages`."""
    return list(messages) if hint is None else hint.insert(messages, hint.text(prompt_id, metadata), prompt_id)


def _places(trajectory: SampledTrajectory, num_turns: int) -> list[int]:
    """Where the sampled messages are: the last `num_turns` of the assistant."""
    places = [place for place, message in enumerate(trajectory.messages) if message["role"] == "assistant"]
    return places[-num_turns:]
