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
from stillhouse.training.on_policy.scored import TeacherView
from stillhouse.training.on_policy.teachers.hint import Hint
from stillhouse.training.on_policy.teachers.turns import prompt_messages, sampled_turns
from stillhouse.training.trajectories import SampledTrajectory
from stillhouse.types import PromptMetadata


class Opening(NamedTuple):
    """What the trajectories of one prompt begin with."""

    prompt_id: str
    conversation: Prefixes
    """With the generation prompt as its only prefix."""
    metadata: PromptMetadata | None


class ViewBuilder(Protocol):
    """Builds the token sequences that one teacher scores."""

    def view(self, trajectory: SampledTrajectory, metadata: PromptMetadata | None) -> TeacherView | None:
        """The teacher's tokens for a trajectory with sampled tokens; None if they are the student's."""

    def added_tokens(self, openings: Sequence[Opening]) -> int:
        """Approximately the most tokens that the teacher reads beyond the student's, in a trajectory of any opening."""


@dataclass(frozen=True, slots=True)
class SameVocabulary:
    """For a teacher of the student's vocabulary.

    Args:
        tokenizer: the student's.
        hint: inserted into the prompt; None inserts nothing.
    """

    tokenizer: PreTrainedTokenizerBase
    hint: Hint | None = None

    def view(self, trajectory: SampledTrajectory, metadata: PromptMetadata | None) -> TeacherView | None:
        """See `ViewBuilder`.

        Raises:
            InputError: the prompt lacks metadata that the hint uses.
        """
        if self.hint is None:
            return None
        messages = prompt_messages(trajectory, self.hint, metadata)
        prompt = render(self.tokenizer, messages, trajectory.tools, add_generation_prompt=True)
        first = trajectory.loss_mask.index(True)
        return TeacherView(prompt + trajectory.token_ids[first:], [False] * len(prompt) + trajectory.loss_mask[first:])

    def added_tokens(self, openings: Sequence[Opening]) -> int:
        """See `ViewBuilder`."""
        return _longest_hint(self.hint, self.tokenizer, openings)


@dataclass(frozen=True, slots=True)
class OtherVocabulary:
    """For a teacher of another vocabulary.

    Args:
        student: the student's tokenizer.
        teacher: the teacher's, with its chat template.
        ends: the student's tokens that end a turn.
        hint: inserted into the prompt; None inserts nothing.
    """

    student: PreTrainedTokenizerBase
    teacher: PreTrainedTokenizerBase
    ends: frozenset[int]
    hint: Hint | None = None

    def view(self, trajectory: SampledTrajectory, metadata: PromptMetadata | None) -> TeacherView:
        """See `ViewBuilder`.

        Raises:
            InputError: the prompt lacks metadata that the hint uses.
            TrainingError: the teacher's template refuses the conversation.
        """
        with rendering(trajectory.prompt_id, "Use a teacher of the student's vocabulary, or another template"):
            return self._view(trajectory, metadata)

    def added_tokens(self, openings: Sequence[Opening]) -> int:
        """See `ViewBuilder`; the hint alone, as the lengths of other tokens are not known before."""
        return _longest_hint(self.hint, self.teacher, openings)

    def _view(self, trajectory: SampledTrajectory, metadata: PromptMetadata | None) -> TeacherView:
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
        return TeacherView(ids, mask)


@contextmanager
def rendering(prompt_id: str, remedy: str) -> Iterator[None]:
    """Turns the refusal of a teacher's template into a TrainingError that names the prompt."""
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
