"""The student's end-of-turn token and the teacher's, which change places where their templates differ.

A base student that ends a turn with `<|endoftext|>` says by it what a chat teacher says by `<|im_end|>`. With the two
exchanged the teacher's distribution is one over the student's tokens: what it gives for a sampled token, its most
probable ones and all of them compare like with like, and a divergence from it is never below 0.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Self

from transformers import PreTrainedTokenizerBase

from stillhouse.chat.next_turn import TurnEnds, turn_ends
from stillhouse.inference.scoring.scores import SequenceScores
from stillhouse.training.on_policy.teachers.teacher import ScoreRequest


@dataclass(frozen=True, slots=True)
class EndExchange:
    """Exchanges the tokens with which student and teacher end a turn of text."""

    student: TurnEnds
    teacher: TurnEnds

    @classmethod
    def between(cls, student: PreTrainedTokenizerBase, teacher: PreTrainedTokenizerBase) -> Self:
        """Return the exchange for two chat templates over one vocabulary; raises as `turn_ends`."""
        return cls(turn_ends(student), turn_ends(teacher))

    @property
    def pair(self) -> tuple[int, int]:
        """The student's token and the teacher's; they may be the same."""
        return self.student.text, self.teacher.text

    @property
    def changes(self) -> bool:
        """Return whether they are two."""
        return self.student.text != self.teacher.text

    @property
    def fits_calls(self) -> bool:
        """Return whether the exchange also makes the student's end of a turn with calls the teacher's."""
        return self.ids([self.student.calls]) == [self.teacher.calls]

    def ids(self, ids: Iterable[int]) -> list[int]:
        """Return the teacher's tokens for the student's."""
        ours, theirs = self.pair
        places = {ours: theirs, theirs: ours}
        return [places.get(token, token) for token in ids]

    def scores(self, request: ScoreRequest, scores: SequenceScores) -> SequenceScores:
        """See `Alignment`: those of the sampled tokens stay, as the teacher read its own tokens."""
        top = scores.top
        if top is None:
            return scores
        (ours, theirs), ids_NK = self.pair, top.ids_NK.copy()
        ids_NK[top.ids_NK == ours], ids_NK[top.ids_NK == theirs] = theirs, ours
        return scores._replace(top=replace(top, ids_NK=ids_NK))
