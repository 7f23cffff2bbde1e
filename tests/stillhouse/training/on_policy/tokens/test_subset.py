from dataclasses import fields, replace

import numpy as np

from stillhouse.inference.scoring.scores import TopLogprobs
from stillhouse.training.on_policy.scored import ScoredSample, TeacherView
from stillhouse.training.on_policy.tokens.subset import first_tokens, weighted, with_loss_at

MASK = [False, True, True, False, False, True, True]
"""Two turns, with the output of a tool between them."""
VALUES = [0.0, 0.1, 0.2, 0.0, 0.0, 0.3, 0.4]
TOP = TopLogprobs.rounded(np.arange(8).reshape(4, 2), np.log([[0.6, 0.3]] * 4))
SAMPLE = ScoredSample(
    [9, 1, 2, 7, 7, 3, 4],
    MASK,
    "p",
    sampling_logprobs=VALUES,
    advantages=VALUES,
    teacher_logprobs=VALUES,
    old_logprobs=VALUES,
    token_weights=VALUES,
    teacher="t",
    teacher_top=TOP,
    teacher_view=TeacherView([5, 9, 1, 2, 7, 7, 3, 4], [False, *MASK]),
)


def test_a_cut_sample_is_what_would_have_been_had_sampling_ended_there():
    cut = first_tokens(SAMPLE, 2)
    assert (cut.token_ids, cut.loss_mask) == ([9, 1, 2], [False, True, True])
    assert cut.teacher_view == TeacherView([5, 9, 1, 2], [False, False, True, True])
    assert cut.teacher_top is not None
    assert cut.teacher_top.ids_NK.tolist() == [[0, 1], [2, 3]]
    lists = [field.name for field in fields(cut) if isinstance(getattr(cut, field.name), list)]
    assert len(lists) == 7
    assert all(len(getattr(cut, name)) == 3 for name in lists)
    assert first_tokens(SAMPLE, 4) is SAMPLE
    assert first_tokens(SAMPLE, 3).token_ids == SAMPLE.token_ids[:6]


def test_a_sample_without_some_lists_is_cut_as_well():
    bare = ScoredSample(SAMPLE.token_ids, MASK, "p", sampling_logprobs=VALUES)
    assert first_tokens(bare, 1) == ScoredSample([9, 1], [False, True], "p", sampling_logprobs=[0.0, 0.1])


def test_loss_at_some_tokens_leaves_the_others_to_be_read():
    chosen = with_loss_at(SAMPLE, np.array([False, True, False, True]))
    assert chosen.loss_mask == [False, False, True, False, False, False, True]
    assert chosen.token_ids == SAMPLE.token_ids
    assert chosen.teacher_view == TeacherView([5, 9, 1, 2, 7, 7, 3, 4], [False, *chosen.loss_mask])
    assert chosen.teacher_top is not None
    assert chosen.teacher_top.ids_NK.tolist() == [[2, 3], [6, 7]]


def test_the_view_of_a_teacher_with_other_tokens_is_not_kept():
    other = replace(SAMPLE, teacher_view=TeacherView([5, 6], [False, True]))
    assert with_loss_at(other, np.array([True] * 4)).teacher_view is None


def test_weights_are_placed_at_the_tokens_of_the_mask():
    assert weighted(SAMPLE, [1.0, 0.9, 0.8, 0.7]).token_weights == [0.0, 1.0, 0.9, 0.0, 0.0, 0.8, 0.7]
