"""Samples with the loss of some of their tokens alone."""

from collections.abc import Sequence
from dataclasses import fields, replace
from itertools import compress
from typing import Final

import numpy as np

from stillhouse.training.on_policy.masks import at_sampled_tokens
from stillhouse.training.on_policy.scored import ScoredSample, TeacherView

_ALIGNED: Final = tuple(field.name for field in fields(ScoredSample) if str(field.type).startswith("list["))
"""Fields that hold a value for each of `token_ids`."""


def with_loss_at(sample: ScoredSample, is_kept_N: np.ndarray) -> ScoredSample:
    """The sample with a mask of the kept ones of its N tokens of the mask."""
    view = sample.teacher_view
    return replace(
        sample,
        loss_mask=_kept(sample.loss_mask, is_kept_N),
        teacher_top=sample.teacher_top and sample.teacher_top.where(is_kept_N),
        teacher_view=view and _view_with_loss_at(view, is_kept_N),
    )


def first_tokens(sample: ScoredSample, count: int) -> ScoredSample:
    """The sample cut behind the first `count` tokens of its mask; there must be as many."""
    num_cut = len(sample.token_ids) - 1 - list(compress(range(len(sample.token_ids)), sample.loss_mask))[count - 1]
    if num_cut == 0:
        return sample
    view = sample.teacher_view
    shorter = {name: getattr(sample, name)[:-num_cut] for name in _ALIGNED if getattr(sample, name) is not None}
    return replace(
        sample,
        **shorter,
        teacher_top=sample.teacher_top and sample.teacher_top.part(0, count),
        teacher_view=view and TeacherView(view.token_ids[:-num_cut], view.loss_mask[:-num_cut]),
    )


def weighted(sample: ScoredSample, weights_N: Sequence[float]) -> ScoredSample:
    """The sample with weights of the N tokens of its mask."""
    return replace(sample, token_weights=at_sampled_tokens(weights_N, sample.loss_mask))


def _view_with_loss_at(view: TeacherView, is_kept_N: np.ndarray) -> TeacherView | None:
    """None for a teacher of another vocabulary: its tokens are others, and nothing reads them after it has scored."""
    if sum(view.loss_mask) != len(is_kept_N):
        return None
    return TeacherView(view.token_ids, _kept(view.loss_mask, is_kept_N))


def _kept(loss_mask: Sequence[bool], is_kept_N: np.ndarray) -> list[bool]:
    kept = iter(is_kept_N.tolist())
    return [is_sampled and next(kept) for is_sampled in loss_mask]
