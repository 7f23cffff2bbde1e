"""The figures against whole distributions, in float64."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from stillhouse.config import OnPolicyConfig, StudentConfig
from stillhouse.inference.scoring.scores import TopLogprobs
from stillhouse.serving.models import load_model
from stillhouse.training.head.scores import Reference
from stillhouse.training.model.load import load_student
from stillhouse.training.model.student import Student
from stillhouse.training.on_policy.scored import ScoredSample
from stillhouse.training.on_policy.teachers.local import LocalSettings, LocalTeacher
from stillhouse.training.on_policy.tokens.figures import ReferenceOf, TokenFigures, measure_tokens, top_reference

_BOTH: dict[str, Any] = {"prune": {"min_overlap": 0.5, "top_k": 8}, "token_weights": {"by": "soft_or"}}
Distributions = Callable[[Sequence[int]], Tensor]


@pytest.fixture(scope="module")
def doubled() -> Student:
    config = StudentConfig(parameters="full", dtype="float32", max_length=512)
    student = load_student("embedded:student", config, torch.device("cpu"), seed=0)
    student.causal_lm.double()
    return student


@pytest.fixture(scope="module")
def of_teacher() -> Distributions:
    """Log-probabilities [tokens - 1, vocabulary] of the tokens after the first, at temperature 0.7."""
    return log_probabilities(load_model("embedded:teacher", device="cpu").double())


def log_probabilities(model: Any) -> Distributions:
    def of(token_ids: Sequence[int]) -> Tensor:
        with torch.no_grad():
            return (model(input_ids=torch.tensor([token_ids])).logits[0, :-1] / 0.7).log_softmax(-1)

    return of


def samples(of_teacher: Distributions, top_k: int) -> list[ScoredSample]:
    """Three of different lengths, of which one has nothing to learn, and one that no teacher scored."""
    draw = np.random.default_rng(2)
    made = []
    for number, length in enumerate((9, 23, 14, 6)):
        ids = draw.integers(5, 400, length).tolist()
        mask = [False] * length if number == 2 else [place > 2 and place % 4 > 0 for place in range(length)]
        logprobs = of_teacher(ids)
        best = logprobs.topk(top_k)
        at_mask = np.flatnonzero(mask) - 1
        top = TopLogprobs.rounded(best.indices.numpy()[at_mask], best.values.numpy()[at_mask])
        given = [0.0, *(float(row[token]) for row, token in zip(logprobs, ids[1:], strict=True))]
        is_scored = number < 3
        made.append(
            ScoredSample(
                ids,
                mask,
                str(number),
                teacher="t" if is_scored else None,
                teacher_logprobs=given if is_scored else None,
                teacher_top=top if is_scored else None,
            )
        )
    return made


def measured(
    student: Student, batch: Sequence[ScoredSample], reference_of: ReferenceOf = top_reference, **settings: Any
) -> list[TokenFigures]:
    config = OnPolicyConfig.model_validate({"temperature": 0.7, **settings})
    return measure_tokens(student, batch, config, reference_of)


def test_entropy_overlap_and_reverse_kl_are_those_of_the_distributions(doubled: Student, of_teacher: Distributions):
    batch = samples(of_teacher, top_k=of_teacher([5, 6]).shape[1])
    of_student = log_probabilities(doubled.causal_lm)
    for sample, seen in zip(batch, measured(doubled, batch, **_BOTH), strict=True):
        places = np.flatnonzero(sample.loss_mask) - 1
        p, q = of_student(sample.token_ids)[places], of_teacher(sample.token_ids)[places]
        assert seen.entropy_N == pytest.approx(-(p.exp() * p).sum(-1).numpy(), abs=1e-9)
        if sample.teacher_top is None or not len(places):
            assert (seen.overlap_N, seen.reverse_kl_N) == (None, None)
            continue
        best = zip(p.topk(8).indices.tolist(), q.topk(8).indices.tolist(), strict=True)
        assert seen.overlap_N == pytest.approx([len({*ours} & {*theirs}) / 8 for ours, theirs in best])
        # The teacher's log-probabilities are in half precision.
        assert seen.reverse_kl_N == pytest.approx((p.exp() * (p - q)).sum(-1).numpy(), rel=2e-3)


@pytest.mark.parametrize("exchanged", [None, (7, 8)])
def test_the_whole_distribution_of_a_teacher_in_this_process_is_compared(
    doubled: Student, of_teacher: Distributions, exchanged: tuple[int, int] | None
):
    def reference_of(group: Sequence[ScoredSample]) -> Reference | None:
        return replace(teacher.reference(group), exchanged=exchanged) if group[0].teacher else None

    model = load_model("embedded:teacher", device="cpu").double()
    rows = len(model.get_output_embeddings().weight)
    teacher = LocalTeacher(LocalSettings("t", 1.0, 0.7, 4096, rows), model, torch.device("cpu"))
    batch = [replace(sample, teacher_top=None) for sample in samples(of_teacher, top_k=1)]
    of_student = log_probabilities(doubled.causal_lm)
    meant = torch.arange(rows)
    if exchanged:
        meant[[*exchanged]] = meant[[*reversed(exchanged)]]
    for sample, seen in zip(batch, measured(doubled, batch, reference_of, **_BOTH), strict=True):
        places = np.flatnonzero(sample.loss_mask) - 1
        if sample.teacher is None or not len(places):
            assert (seen.overlap_N, seen.reverse_kl_N) == (None, None)
            continue
        p, q = of_student(sample.token_ids)[places], of_teacher(sample.token_ids)[places][:, meant]
        best = zip(p.topk(8).indices.tolist(), q.topk(8).indices.tolist(), strict=True)
        assert seen.overlap_N == pytest.approx([len({*ours} & {*theirs}) / 8 for ours, theirs in best])
        assert seen.reverse_kl_N == pytest.approx((p.exp() * (p - q)).sum(-1).numpy(), abs=1e-9)


def test_no_split_into_microbatches_changes_them(doubled: Student, of_teacher: Distributions):
    batch = samples(of_teacher, top_k=16)
    whole, split = (measured(doubled, batch, **_BOTH, microbatch_tokens=size) for size in (4096, 16))
    for one, other in zip(whole, split, strict=True):
        for name in TokenFigures.__slots__:
            seen, expected = getattr(one, name), getattr(other, name)
            assert (seen is None) == (expected is None)
            assert seen is None or seen == pytest.approx(expected, abs=1e-9)


def test_nothing_is_compared_that_is_not_asked_for(doubled: Student, of_teacher: Distributions):
    first = samples(of_teacher, top_k=16)[:1]
    (by_entropy,) = measured(doubled, first, token_weights={"by": "entropy"})
    assert (by_entropy.overlap_N, by_entropy.reverse_kl_N) == (None, None)
    (pruned,) = measured(doubled, first, prune={"min_overlap": 0.5})
    assert pruned.overlap_N is not None
    assert pruned.reverse_kl_N is None


def test_the_student_is_left_as_it_was(doubled: Student, of_teacher: Distributions):
    doubled.model.train()
    measured(doubled, samples(of_teacher, top_k=16), **_BOTH)
    assert doubled.model.training
    assert all(parameter.grad is None for parameter in doubled.model.parameters())
