"""The ids that teacher and student share, where one of them has more added tokens than the other."""

from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from transformers import PreTrainedTokenizerBase

from stillhouse.errors import TrainingError
from stillhouse.inference.scoring.scores import SequenceScores
from stillhouse.training.on_policy.teachers.ends import EndExchange
from stillhouse.training.on_policy.teachers.teacher import ScoreRequest

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
    """Whether the teacher reads the student's tokens of the prompt, and not its own rendering."""

    def scores(self, request: ScoreRequest, scores: SequenceScores) -> SequenceScores:
        """See `Alignment`; raises as `check`."""
        if self.exchange is not None:
            scores = self.exchange.scores(request, scores)
        self.check(request)
        if scores.top is None:
            return scores
        ids_NK = np.where(scores.top.ids_NK < self.count, scores.top.ids_NK, NO_ID)
        return scores._replace(top=replace(scores.top, ids_NK=ids_NK))

    def check(self, request: ScoreRequest) -> None:
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
