"""Has a vLLM server score the tokens that the student finds most probable beside its own, where it can.

By the student's alone a reverse KL does not say which of all others the teacher prefers: a student far from its teacher
moves its mass to them and spreads it there (as verl#5041 saw).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from stillhouse.inference.failures import RequestFailed
from stillhouse.inference.model_server import ModelServer
from stillhouse.inference.scoring.api import GivenIds, WrongAnswer, checked_logprobs
from stillhouse.inference.scoring.ledger import SAME_TEACHER
from stillhouse.inference.scoring.scorer import Scorer
from stillhouse.inference.scoring.scores import SequenceScores, TopLogprobs
from stillhouse.training.on_policy.teachers.shared_ids import NO_ID, SharedIds
from stillhouse.types import Sample

_NONE: Final = -1
"""Stands on the wire for an id that the teacher lacks."""


@dataclass(frozen=True, slots=True)
class GivenIdsScorer:
    """Scores the student's `count` most probable tokens, of which the sampled one is always one, and the teacher's."""

    scorer: Scorer
    count: int
    shared: SharedIds
    """The ids that the teacher has, too."""

    async def score(self, requests: Sequence[Sample]) -> list[SequenceScores]:
        """Return scores of requests with `best_ids_NK`, in the teacher's ids; raises as `Scorer.score`."""
        asked = [self._asked(request) for request in requests]
        return [_scores(*pair) for pair in zip(asked, await self.scorer.score(asked), strict=True)]

    def refusal(self, server: ModelServer, view: Sample, known: Sequence[float]) -> str | None:
        """Return why the server does not score given ids, those of `view` as `known`; None if it does."""
        asked = self._asked(replace(view, best_ids_NK=np.tile(np.arange(self.count), (len(known), 1))))
        try:
            [answer] = server.start(self.scorer.score_now([asked], 1.0)).result()
            difference = np.abs(np.subtract(_scores(asked, answer).logprobs, known)).max()
        except (RequestFailed, WrongAnswer) as error:
            return str(error)
        return None if difference <= SAME_TEACHER else f"it scores the same tokens {difference:.3g} nats otherwise"

    def _asked(self, request: Sample) -> GivenIds:
        assert request.best_ids_NK is not None
        ids_NK = request.best_ids_NK[:, : self.count]
        ids_NK = ids_NK if self.shared.exchange is None else self.shared.exchange.exchanged(ids_NK)
        ids_NK = np.where(ids_NK < self.shared.count, ids_NK, _NONE).astype(np.int32)
        targets_N = _targets(request.read)
        is_missing_N = ~(ids_NK == targets_N[:, None]).any(axis=1)
        ids_NK[is_missing_N, -1] = targets_N[is_missing_N]
        return GivenIds(request.read.token_ids, request.read.loss_mask, ids_NK)


def _targets(tokens: Sample | GivenIds) -> np.ndarray:
    return np.array(tokens.token_ids)[np.array(tokens.loss_mask)]


def _scores(asked: GivenIds, answer: SequenceScores) -> SequenceScores:
    targets_N, ids_NK = _targets(asked), asked.ids_NK
    logprobs_NK = np.array(answer.logprobs, np.float32).reshape(ids_NK.shape)
    scored_N = logprobs_NK[ids_NK == targets_N[:, None]]
    assert answer.top is not None
    own_NK = answer.top.ids_NK
    is_new_NK = ~(own_NK[:, :, None] == ids_NK[:, None, :]).any(axis=2)
    own_logprobs_NK = np.where(is_new_NK, answer.top.logprobs_NK.astype(np.float32), -np.inf)
    ids_NK = np.hstack([np.where(ids_NK == _NONE, NO_ID, ids_NK), np.where(is_new_NK, own_NK, NO_ID)])
    top = TopLogprobs.given(ids_NK, np.hstack([logprobs_NK, own_logprobs_NK]))
    return SequenceScores(checked_logprobs(scored_N.tolist(), targets_N.tolist()), top)
