"""Tokens that mean the same to teacher and student: exchanged ends of turns, and the ids that both have."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final, Self

import numpy as np
from transformers import PreTrainedTokenizerBase

from stillhouse.chat.next_turn import TurnEnds, turn_ends
from stillhouse.errors import TrainingError
from stillhouse.inference.scoring.scores import SequenceScores
from stillhouse.types import Sample


@dataclass(frozen=True, slots=True)
class EndExchange:
    """Exchanges the tokens with which student and teacher end a turn of text.

    A base student that ends a turn with `<|endoftext|>` says by it what a chat teacher says by `<|im_end|>`. With both
    exchanged the teacher's distribution is one over the student's tokens: what it gives for a sampled token, its most
    probable ones and all of them compare like with like, and a divergence from it is never below 0.
    """

    student: TurnEnds
    teacher: TurnEnds

    @classmethod
    def between(cls, student: PreTrainedTokenizerBase, teacher: PreTrainedTokenizerBase) -> Self:
        """Return the exchange for two chat templates over one vocabulary; raises as `turn_ends`."""
        return cls(turn_ends(student), turn_ends(teacher))

    @property
    def pair(self) -> tuple[int, int]:
        """Return the student's token and the teacher's; they may be the same."""
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

    def scores(self, request: Sample, scores: SequenceScores) -> SequenceScores:
        """See `Alignment`: scores of the sampled tokens stay, as the teacher read its own tokens."""
        top = scores.top
        return scores if top is None else scores._replace(top=replace(top, ids_NK=self.exchanged(top.ids_NK)))

    def exchanged(self, ids_NK: np.ndarray) -> np.ndarray:
        """Return the teacher's ids for the student's, or the student's for the teacher's."""
        (ours, theirs), changed_NK = self.pair, ids_NK.copy()
        changed_NK[ids_NK == ours], changed_NK[ids_NK == theirs] = theirs, ours
        return changed_NK


NO_ID: Final = np.iinfo(np.int32).max
"""Stands for a token that the student does not have among a teacher's most probable ones."""


@dataclass(frozen=True, slots=True)
class SharedIds:
    """Compares the ids below `count`, which are the same tokens for both; see `Alignment`.

    A token of the student's at or above it has no probability under the teacher: training stops where one is read or
    sampled. The teacher's own lie among its other tokens.
    """

    teacher: str
    """Its name."""
    count: int
    student: PreTrainedTokenizerBase
    exchange: EndExchange | None = None
    reads_prompt: bool = True
    """True if the teacher reads the student's tokens of the prompt, and not its own rendering."""

    def scores(self, request: Sample, scores: SequenceScores) -> SequenceScores:
        """See `Alignment`; raises as `check`."""
        if self.exchange is not None:
            scores = self.exchange.scores(request, scores)
        self.check(request)
        if scores.top is None:
            return scores
        ids_NK = np.where(scores.top.ids_NK < self.count, scores.top.ids_NK, NO_ID)
        return scores._replace(top=replace(scores.top, ids_NK=ids_NK))

    def check(self, request: Sample) -> None:
        """Raise TrainingError if the teacher lacks a token that it is to read or score."""
        pairs = zip(request.token_ids, request.loss_mask, strict=True)
        read = [token for token, is_sampled in pairs if is_sampled or self.reads_prompt]
        if max(read) < self.count:
            return
        token = next(token for token in read if token >= self.count)
        raise TrainingError(
            f"prompt {request.prompt_id}: its tokens hold {self.student.convert_ids_to_tokens(token)!r} ({token}), "
            f"which teacher {self.teacher!r} does not have: the first {self.count} ids are shared. Set this teacher's "
            "`alignment` to `bytes`, or use a chat template and prompts without that token"
        )
