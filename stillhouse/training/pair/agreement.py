"""How far teacher and student agree on the tokens that the student sampled.

Dimensions: N scored tokens, K most probable tokens of each model.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain, compress
from typing import Final

import numpy as np

from stillhouse.inference.scoring.scores import TopLogprobs
from stillhouse.training.on_policy.teachers.teacher import ScoreRequest, TeacherScores
from stillhouse.training.pair.figures import Agreement, EndScores, OneSided

_WORST: Final = 0.05
"""Share of the tokens that are looked at as the worst."""


def agreement(
    requests: Sequence[ScoreRequest], student: Sequence[TeacherScores], teacher: Sequence[TeacherScores]
) -> Agreement:
    """The figures of a teacher over all sampled tokens of the requests, each scored by both."""
    ours_N, theirs_N = sampled(requests, student), sampled(requests, teacher)
    differences_N = ours_N - theirs_N
    positive_N = np.sort(np.clip(differences_N, 0.0, None))[::-1]
    num_worst = max(1, round(_WORST * len(positive_N)))
    total = positive_N.sum()
    figures = Agreement(
        num_tokens=len(ours_N),
        kl=float(differences_N.mean()),
        worst_share=float(positive_N[:num_worst].sum() / total) if total > 0.0 else 0.0,
        nll=float(-theirs_N.mean()),
    )
    ids = [_best_ids(scores) for scores in (student, teacher)]
    if any(best is None or len(best) != len(ours_N) for best in ids):
        return figures
    return _with_overlap(figures, *ids)  # type: ignore[arg-type]


def end_scores(
    requests: Sequence[ScoreRequest],
    ends: frozenset[int],
    student: Sequence[TeacherScores],
    teacher: Sequence[TeacherScores],
) -> EndScores | None:
    """Probabilities of the end tokens that the student sampled; None without one."""
    is_end_N = end_places(requests, ends)
    if not is_end_N.any():
        return None
    ours, theirs = (float(np.exp(sampled(requests, scores)[is_end_N]).mean()) for scores in (student, teacher))
    return EndScores(int(is_end_N.sum()), ours, theirs)


def one_sided(num_shared: int, student: Sequence[TeacherScores], teacher: Sequence[TeacherScores]) -> OneSided:
    """Probability on ids that are not below `num_shared`, as far as the most probable tokens show it."""
    return OneSided(num_shared, *(_mass_behind(num_shared, scores) for scores in (student, teacher)))


def _mass_behind(num_shared: int, scores: Sequence[TeacherScores]) -> float:
    tops = [one.top for one in scores if one.top is not None and len(one.top.ids_NK)]
    masses = [np.where(top.ids_NK >= num_shared, np.exp(top.logprobs_NK.astype(np.float64)), 0.0) for top in tops]
    return float(np.concatenate([mass_NK.sum(axis=1) for mass_NK in masses]).mean()) if masses else 0.0


def sampled(requests: Sequence[ScoreRequest], scores: Sequence[TeacherScores]) -> np.ndarray:
    """Log-probabilities [N] of the sampled tokens, requests concatenated."""
    pairs = zip(requests, scores, strict=True)
    return np.array(list(chain.from_iterable(compress(one.logprobs, request.loss_mask) for request, one in pairs)))


def end_places(requests: Sequence[ScoreRequest], ends: frozenset[int]) -> np.ndarray:
    """Whether each sampled token [N] ends a turn."""
    tokens = chain.from_iterable(compress(request.token_ids, request.loss_mask) for request in requests)
    return np.array([token in ends for token in tokens], dtype=bool)


def _best_ids(scores: Sequence[TeacherScores]) -> np.ndarray | None:
    tops: list[TopLogprobs] = [one.top for one in scores if one.top is not None]
    if len(tops) < len(scores):
        return None
    width = min(top.ids_NK.shape[1] for top in tops)
    return np.concatenate([top.ids_NK[:, :width] for top in tops])


def _with_overlap(figures: Agreement, ours_NK: np.ndarray, theirs_NK: np.ndarray) -> Agreement:
    width = min(ours_NK.shape[1], theirs_NK.shape[1])
    ours_NK, theirs_NK = ours_NK[:, :width], theirs_NK[:, :width]
    shared_NK = (ours_NK[:, :, None] == theirs_NK[:, None, :]).any(axis=2)
    return replace(
        figures,
        top_k=width,
        overlap=float(shared_NK.mean()),
        differing=float((ours_NK[:, 0] != theirs_NK[:, 0]).mean()),
    )
