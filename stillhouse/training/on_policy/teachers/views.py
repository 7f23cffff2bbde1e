"""Token sequences that teachers score, where they differ from the student's.

For a teacher of the student's vocabulary a hint changes the prompt; from the first sampled token on the tokens are the
student's. For another vocabulary the prompt is rendered by the teacher's template, each sampled turn is encoded by its
tokenizer, and its template fills in what stands between turns.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from transformers import PreTrainedTokenizerBase

from stillhouse.chat.next_turn import end_token_id, next_turn_ids
from stillhouse.chat.rendering import Prefixes, TemplateError
from stillhouse.chat.template import render
from stillhouse.chat.tokenizer import encode, encode_all
from stillhouse.errors import TrainingError
from stillhouse.training.on_policy.teachers.hint import Hint
from stillhouse.training.trajectories import SampledTrajectory, sampled_runs, unsampled_runs
from stillhouse.types import Message, PromptMetadata, Sample


class Opening(NamedTuple):
    """The common start of the trajectories of one prompt."""

    prompt_id: str
    conversation: Prefixes
    """With the generation prompt as its only prefix."""
    metadata: PromptMetadata | None


class ViewBuilder(Protocol):
    """Builds the token sequences that one teacher scores."""

    def view(self, trajectory: SampledTrajectory, metadata: PromptMetadata | None) -> Sample | None:
        """Return the teacher's tokens for a trajectory with sampled tokens; None if they are the student's.

        Raises:
            InputError: the prompt lacks metadata that the hint uses.
            TrainingError: the teacher's template refuses the conversation.
        """

    def added_tokens(self, openings: Sequence[Opening]) -> int:
        """Return about the most tokens that the teacher reads beyond the student's, in a trajectory of any opening."""


@dataclass(frozen=True, slots=True)
class SameVocabulary:
    """For a teacher that reads by the student's tokenizer."""

    tokenizer: PreTrainedTokenizerBase
    hint: Hint | None = None

    def view(self, trajectory: SampledTrajectory, metadata: PromptMetadata | None) -> Sample | None:
        if self.hint is None:
            return None
        messages = prompt_messages(trajectory, self.hint, metadata)
        prompt = render(self.tokenizer, messages, trajectory.tools, add_generation_prompt=True)
        first = trajectory.loss_mask.index(True)
        return Sample(
            prompt + trajectory.token_ids[first:],
            [False] * len(prompt) + trajectory.loss_mask[first:],
            trajectory.prompt_id,
        )

    def added_tokens(self, openings: Sequence[Opening]) -> int:
        return _longest_hint(self.hint, self.tokenizer, openings)


@dataclass(frozen=True, slots=True)
class OtherVocabulary:
    """For a teacher of another vocabulary, which reads by its own tokenizer and chat template."""

    student: PreTrainedTokenizerBase
    teacher: PreTrainedTokenizerBase
    ends: frozenset[int]
    """The student's tokens that end a turn."""
    hint: Hint | None = None

    def view(self, trajectory: SampledTrajectory, metadata: PromptMetadata | None) -> Sample:
        with rendering(trajectory.prompt_id, "Use a teacher of the student's vocabulary, or another template"):
            return self._view(trajectory, metadata)

    def added_tokens(self, openings: Sequence[Opening]) -> int:
        """See `ViewBuilder`; the hint alone, as the lengths of other tokens are not known before."""
        return _longest_hint(self.hint, self.teacher, openings)

    def _view(self, trajectory: SampledTrajectory, metadata: PromptMetadata | None) -> Sample:
        schemas = trajectory.tools
        prompt = prompt_messages(trajectory, self.hint, metadata)
        ids = render(self.teacher, prompt, schemas, add_generation_prompt=True)
        mask = [False] * len(ids)
        end = end_token_id(self.teacher)
        for turn in sampled_turns(trajectory):
            is_ended = turn.ids[-1] in self.ends
            text = self.student.decode(turn.ids[:-1] if is_ended else turn.ids)
            written = encode(self.teacher, text) + [end] * is_ended
            read: list[int] = []
            if turn.replies:
                read = next_turn_ids(self.teacher, written, [*prompt, *turn.messages], turn.replies, schemas)
            ids += written + read
            mask += [True] * len(written) + [False] * len(read)
        return Sample(ids, mask, trajectory.prompt_id)


class SampledTurn(NamedTuple):
    """One completion of a trajectory."""

    prompt_ids: list[int]
    """Tokens that the student read since its last completion, which ends with the generation prompt."""
    ids: list[int]
    """Tokens that it sampled."""
    messages: list[Message]
    """From the first sampled message of the trajectory up to this one."""
    replies: list[Message]
    """Tool results or user messages between this turn and the next; none after the last."""


def sampled_turns(trajectory: SampledTrajectory) -> list[SampledTurn]:
    """Return the completions in order."""
    runs, read = sampled_runs(trajectory), unsampled_runs(trajectory)
    first, *others = _places(trajectory, len(runs))
    turns = []
    for ids, prompt_ids, place, end in zip(runs, read, [first, *others], [*others, None], strict=False):
        replies = [] if end is None else trajectory.messages[place + 1 : end]
        turns.append(SampledTurn(prompt_ids, ids, trajectory.messages[first : place + 1], replies))
    return turns


def prompt_messages(trajectory: SampledTrajectory, hint: Hint | None, metadata: PromptMetadata | None) -> list[Message]:
    """Return the messages before the sampled ones, with the hint; raises as `Hint.insert`."""
    first, *_ = _places(trajectory, len(sampled_runs(trajectory)))
    messages = trajectory.messages[:first]
    return messages if hint is None else hint.insert(messages, trajectory.prompt_id, metadata)


def _places(trajectory: SampledTrajectory, num_turns: int) -> list[int]:
    """Return the places of the sampled messages: the last `num_turns` of the assistant."""
    places = [place for place, message in enumerate(trajectory.messages) if message["role"] == "assistant"]
    return places[-num_turns:]


@contextmanager
def rendering(prompt_id: str, remedy: str) -> Iterator[None]:
    """Turn the refusal of a teacher's template into a TrainingError that names the prompt."""
    try:
        yield
    except TemplateError as error:
        raise TrainingError(
            f"prompt {prompt_id}: the teacher's chat template cannot render the conversation: {error}. {remedy}"
        ) from error


def _longest_hint(hint: Hint | None, tokenizer: PreTrainedTokenizerBase, openings: Sequence[Opening]) -> int:
    if hint is None:
        return 0
    texts = [hint.text(opening.prompt_id, opening.metadata) for opening in openings]
    return max(map(len, encode_all(tokenizer, texts)), default=0)
