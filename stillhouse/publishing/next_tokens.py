"""How far a form's next-token distributions are from the student's, on the student's own answers.

Dimensions: N positions, K most probable tokens.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

import httpx
import numpy as np

from stillhouse.errors import EndpointError
from stillhouse.inference.scoring.completions_api import VllmApi
from stillhouse.inference.scoring.scores import SequenceScores, TopLogprobs
from stillhouse.types import Sample

TOP_K: Final = 20
"""As many as a vLLM server gives unless it is told otherwise."""
_TIMEOUT_S: Final = 600.0


class NextTokens(NamedTuple):
    kl: float
    """KL(student || form) a token in nats, over the tokens that both hold most probable and all others as one; a lower
    bound of that over the vocabulary (the data processing inequality)."""
    same_best: float
    """Share of positions with the same most probable token."""
    num_tokens: int


def score(url: str, model: str, samples: Sequence[Sample]) -> list[SequenceScores]:
    """Return the most probable tokens of a served model at the targets; raise EndpointError if it gives none."""
    api = VllmApi(model, top_k=TOP_K)
    found = []
    with httpx.Client(timeout=_TIMEOUT_S) as client:
        for sample in samples:
            answer = client.post(f"{url}/completions", json=api.body([sample], 1.0))
            if answer.is_error:
                raise EndpointError(f"{url} gives no log-probabilities of prompts: {answer.text[:300]}")
            found += api.scores(answer.json(), [sample])
    return found


def compare_next_tokens(student: Sequence[SequenceScores], form: Sequence[SequenceScores]) -> NextTokens:
    """Compare the distributions at the same positions."""
    kl, same, number = 0.0, 0, 0
    for one, other in zip(student, form, strict=True):
        assert one.top is not None
        assert other.top is not None
        kl += float(_kl_N(one.top, other.top).sum())
        same += int((one.top.ids_NK[:, 0] == other.top.ids_NK[:, 0]).sum())
        number += len(one.top.ids_NK)
    return NextTokens(kl / number, same / number, number)


def _kl_N(student: TopLogprobs, form: TopLogprobs) -> np.ndarray:
    matches_NKK = student.ids_NK[:, :, None] == form.ids_NK[:, None, :]
    p_NK, q_NK = (np.exp(top.logprobs_NK.astype(np.float64)) for top in (student, form))
    q_at_NK = (matches_NKK * q_NK[:, None, :]).sum(-1)
    p_NK = np.where(matches_NKK.any(-1), p_NK, 0.0)
    # What is not among the most probable of both is one event.
    p_NE, q_NE = (np.concatenate([x, 1.0 - x.sum(-1, keepdims=True)], axis=1).clip(1e-9) for x in (p_NK, q_at_NK))
    return np.asarray((np.where(p_NE > 1e-9, p_NE * np.log(p_NE / q_NE), 0.0)).sum(-1))
