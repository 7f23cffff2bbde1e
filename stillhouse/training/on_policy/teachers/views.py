"""What a teacher reads of a trajectory, where that is not the student's own tokens.

The student's tokens are never written anew for a teacher of its vocabulary: a hint changes the prompt, and everything
from the first sampled token on is what the student sampled and was told. A teacher with other tokens reads the prompt
as its own template writes it, then each turn's text in its own tokens, and in between what its template writes there.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from transformers import PreTrainedTokenizerBase

from stillhouse.chat.rendering import TemplateError
from stillhouse.chat.template import next_turn_ids, render
from stillhouse.chat.tokenizer import encode, end_of_turn, special_ids
from stillhouse.errors import TrainingError
from stillhouse.training.on_policy.masks import sampled_runs
from stillhouse.training.on_policy.scored import TeacherView
from stillhouse.training.on_policy.teachers.hint import Hint
from stillhouse.training.on_policy.trajectories import SampledTrajectory
from stillhouse.types import Message, PromptMetadata


class ViewBuilder(Protocol):
    """Makes the views of one teacher."""

    def view(self, trajectory: SampledTrajectory, metadata: PromptMetadata | None) -> TeacherView | None:
        """What the teacher reads of a trajectory with sampled tokens; None for the trajectory's own tokens."""

    def num_added(self, prompt_id: str, metadata: PromptMetadata | None) -> int:
        """Tokens that it reads beyond the student's, about."""


@dataclass(frozen=True, slots=True)
class SameVocabulary:
    """For a teacher of the student's vocabulary.

    Args:
        tokenizer: the student's.
        hint: what it reads in the prompt; None for nothing more.
    """

    tokenizer: PreTrainedTokenizerBase
    hint: Hint | None = None

    def view(self, trajectory: SampledTrajectory, metadata: PromptMetadata | None) -> TeacherView | None:
        """See `ViewBuilder`.

        Raises:
            InputError: the prompt does not have what the hint asks for.
        """
        if self.hint is None:
            return None
        messages = _hinted(self.hint, trajectory, metadata)
        prompt = render(self.tokenizer, messages, trajectory.tools, add_generation_prompt=True)
        first = trajectory.loss_mask.index(True)
        return TeacherView(prompt + trajectory.token_ids[first:], [False] * len(prompt) + trajectory.loss_mask[first:])

    def num_added(self, prompt_id: str, metadata: PromptMetadata | None) -> int:
        """See `ViewBuilder`."""
        return 0 if self.hint is None else len(encode(self.tokenizer, self.hint.text(prompt_id, metadata)))


@dataclass(frozen=True, slots=True)
class OtherVocabulary:
    """For a teacher of another vocabulary.

    Args:
        student: the student's tokenizer.
        teacher: the teacher's, with its chat template.
        ends: the student's tokens that end a turn.
        hint: what it reads in the prompt; None for nothing more.
    """

    student: PreTrainedTokenizerBase
    teacher: PreTrainedTokenizerBase
    ends: frozenset[int]
    hint: Hint | None = None

    def view(self, trajectory: SampledTrajectory, metadata: PromptMetadata | None) -> TeacherView:
        """See `ViewBuilder`.

        Raises:
            InputError: the prompt does not have what the hint asks for.
            TrainingError: the teacher's template refuses the conversation.
        """
        try:
            return self._view(trajectory, metadata)
        except TemplateError as error:
            raise TrainingError(
                f"prompt {trajectory.prompt_id}: the teacher's chat template cannot render what the student sampled: "
                f"{error}. Use a teacher of the student's vocabulary, or another template"
            ) from error

    def num_added(self, prompt_id: str, metadata: PromptMetadata | None) -> int:
        """See `ViewBuilder`."""
        return 0 if self.hint is None else len(encode(self.teacher, self.hint.text(prompt_id, metadata)))

    def _view(self, trajectory: SampledTrajectory, metadata: PromptMetadata | None) -> TeacherView:
        runs = sampled_runs(trajectory)
        schemas = trajectory.tools
        prompt = _prompt(trajectory.messages, len(runs))
        said = trajectory.messages[len(prompt) :]
        shown = prompt if self.hint is None else _hinted(self.hint, trajectory, metadata)
        ids = render(self.teacher, shown, schemas, add_generation_prompt=True)
        mask = [False] * len(ids)
        end = _end_of_turn(self.teacher)
        for number, run in enumerate(runs):
            is_ended = run[-1] in self.ends
            turn = encode(self.teacher, self.student.decode(run[:-1] if is_ended else run)) + [end] * is_ended
            between: list[int] = []
            message, *rest = _turn(said, number)
            shown = [*shown, message]
            if number + 1 < len(runs):
                between = next_turn_ids(self.teacher, turn, shown, rest, schemas)
                shown += rest
            ids += turn + between
            mask += [True] * len(turn) + [False] * len(between)
        return TeacherView(ids, mask)


def _prompt(messages: Sequence[Message], num_turns: int) -> list[Message]:
    """What stands before the first of the sampled messages, the last `num_turns` of the assistant's."""
    places = [place for place, message in enumerate(messages) if message["role"] == "assistant"]
    return list(messages[: places[-num_turns]])


def _turn(said: Sequence[Message], number: int) -> list[Message]:
    """A sampled message and what answers it."""
    places = [place for place, message in enumerate(said) if message["role"] == "assistant"]
    places.append(len(said))
    return list(said[places[number] : places[number + 1]])


def _hinted(hint: Hint, trajectory: SampledTrajectory, metadata: PromptMetadata | None) -> list[Message]:
    num_turns = len(sampled_runs(trajectory))
    prompt = _prompt(trajectory.messages, num_turns)
    return hint.into(prompt, hint.text(trajectory.prompt_id, metadata), trajectory.prompt_id)


def _end_of_turn(tokenizer: PreTrainedTokenizerBase) -> int:
    """The token by which the tokenizer's template closes an assistant's turn."""
    messages: list[Message] = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    ids = render(tokenizer, messages, None, add_generation_prompt=False)
    return ids[end_of_turn(ids, special_ids(tokenizer), 1)]
