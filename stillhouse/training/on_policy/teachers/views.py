"""Token sequences that teachers score, where they differ from the student's.

For a teacher of the student's vocabulary a hint changes the prompt; from the first sampled token on the tokens are the
student's. For another vocabulary the prompt is rendered by the teacher's template, each sampled turn is encoded by its
tokenizer, and its template fills in what stands between turns.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from transformers import PreTrainedTokenizerBase

from stillhouse.chat.next_turn import end_token_id, next_turn_ids
from stillhouse.chat.rendering import TemplateError
from stillhouse.chat.template import render
from stillhouse.chat.tokenizer import encode
from stillhouse.errors import TrainingError
from stillhouse.training.on_policy.masks import sampled_runs
from stillhouse.training.on_policy.scored import TeacherView
from stillhouse.training.on_policy.teachers.hint import Hint
from stillhouse.training.trajectories import SampledTrajectory
from stillhouse.types import Message, PromptMetadata


class ViewBuilder(Protocol):
    """Builds the token sequences that one teacher scores."""

    def view(self, trajectory: SampledTrajectory, metadata: PromptMetadata | None) -> TeacherView | None:
        """The teacher's tokens for a trajectory with sampled tokens; None if they are the student's."""

    def hint_tokens(self, prompt_id: str, metadata: PromptMetadata | None) -> int:
        """Approximate length of the hint in tokens."""


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
        messages = _hinted(self.hint, trajectory, metadata)
        prompt = render(self.tokenizer, messages, trajectory.tools, add_generation_prompt=True)
        first = trajectory.loss_mask.index(True)
        return TeacherView(prompt + trajectory.token_ids[first:], [False] * len(prompt) + trajectory.loss_mask[first:])

    def hint_tokens(self, prompt_id: str, metadata: PromptMetadata | None) -> int:
        """See `ViewBuilder`."""
        return 0 if self.hint is None else len(encode(self.tokenizer, self.hint.text(prompt_id, metadata)))


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
        try:
            return self._view(trajectory, metadata)
        except TemplateError as error:
            raise TrainingError(
                f"prompt {trajectory.prompt_id}: the teacher's chat template cannot render what the student sampled: "
                f"{error}. Use a teacher of the student's vocabulary, or another template"
            ) from error

    def hint_tokens(self, prompt_id: str, metadata: PromptMetadata | None) -> int:
        """See `ViewBuilder`."""
        return 0 if self.hint is None else len(encode(self.teacher, self.hint.text(prompt_id, metadata)))

    def _view(self, trajectory: SampledTrajectory, metadata: PromptMetadata | None) -> TeacherView:
        runs = sampled_runs(trajectory)
        schemas = trajectory.tools
        prompt = _prompt(trajectory.messages, len(runs))
        replies = trajectory.messages[len(prompt) :]
        messages = prompt if self.hint is None else _hinted(self.hint, trajectory, metadata)
        ids = render(self.teacher, messages, schemas, add_generation_prompt=True)
        mask = [False] * len(ids)
        end = end_token_id(self.teacher)
        for number, run in enumerate(runs):
            is_ended = run[-1] in self.ends
            turn = encode(self.teacher, self.student.decode(run[:-1] if is_ended else run)) + [end] * is_ended
            between: list[int] = []
            message, *rest = _turn(replies, number)
            messages = [*messages, message]
            if number + 1 < len(runs):
                between = next_turn_ids(self.teacher, turn, messages, rest, schemas)
                messages += rest
            ids += turn + between
            mask += [True] * len(turn) + [False] * len(between)
        return TeacherView(ids, mask)


def _prompt(messages: Sequence[Message], num_turns: int) -> list[Message]:
    """The messages before the sampled ones, which are the last `num_turns` of the assistant."""
    places = [place for place, message in enumerate(messages) if message["role"] == "assistant"]
    return list(messages[: places[-num_turns]])


def _turn(replies: Sequence[Message], number: int) -> list[Message]:
    """A sampled message and the tool results or user messages that follow it."""
    places = [place for place, message in enumerate(replies) if message["role"] == "assistant"]
    places.append(len(replies))
    return list(replies[places[number] : places[number + 1]])


def _hinted(hint: Hint, trajectory: SampledTrajectory, metadata: PromptMetadata | None) -> list[Message]:
    prompt = _prompt(trajectory.messages, len(sampled_runs(trajectory)))
    return hint.insert(prompt, hint.text(trajectory.prompt_id, metadata), trajectory.prompt_id)
