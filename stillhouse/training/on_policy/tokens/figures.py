"""Entropy of each token of a batch before it is trained on, overlap with its teacher, and divergence from it.

Dimensions: N sampled tokens, C those of a chunk, V vocabulary, K most probable tokens.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from stillhouse.config import OnPolicyConfig
from stillhouse.training.head.comparison import Comparison, TeacherComparison, exchange_
from stillhouse.training.head.fused import chunk_tokens
from stillhouse.training.head.scores import Reference, TopReference
from stillhouse.training.head.softmax import softmax_, wide
from stillhouse.training.head.top_comparison import TopComparison
from stillhouse.training.model.microbatches import microbatch_groups
from stillhouse.training.model.student import Student
from stillhouse.training.on_policy.scored import ScoredSample, TeacherView
from stillhouse.training.on_policy.teachers.packed import PackedModel


@dataclass(frozen=True, slots=True, eq=False)
class TokenFigures:
    """Of the N tokens of a sample's mask, in order, under the student as it is before the first update on them.

    Overlap and reverse KL are None without a teacher, and where nothing asks for them.
    """

    entropy_N: np.ndarray
    """Entropy in nats."""
    overlap_N: np.ndarray | None = None
    """Share of the student's K most probable tokens that are among the teacher's."""
    reverse_kl_N: np.ndarray | None = None
    """KL(student || teacher) in nats, over the whole vocabulary or over the teacher's best tokens, the sampled one, and
    all others as one."""

    def where(self, is_kept_N: np.ndarray) -> "TokenFigures":
        """Those of the tokens at which the mask is True."""
        overlap_N, kl_N = self.overlap_N, self.reverse_kl_N
        return TokenFigures(
            self.entropy_N[is_kept_N],
            None if overlap_N is None else overlap_N[is_kept_N],
            None if kl_N is None else kl_N[is_kept_N],
        )


ReferenceOf = Callable[[Sequence[ScoredSample]], Reference | TopReference | None]
"""The teacher of samples of one teacher, at the tokens of their masks; None if they have none."""


def measure_tokens(
    student: Student, samples: Sequence[ScoredSample], config: OnPolicyConfig, reference_of: ReferenceOf
) -> list[TokenFigures]:
    """The figures of each sample: one forward pass of the student over the batch, at the sampling temperature."""
    packing = student.packs_exactly()
    packed = PackedModel(student.causal_lm, student.device, packing=packing, name="student")
    figures = {id(sample): TokenFigures(np.zeros(0)) for sample in samples}
    groups = microbatch_groups(
        samples, config.microbatch_tokens, packing=packing, partition=lambda sample: sample.teacher or ""
    )
    for group in groups:
        # Before the student's pass: teachers that are the student itself swap its weights.
        with torch.no_grad():
            reference = reference_of(group)
        with student.evaluating():
            views = [TeacherView(one.token_ids, one.loss_mask) for one in group]
            whole = _figures(packed, *packed.hidden_states(views), reference, config)
        places = np.repeat(np.arange(len(group)), [sum(sample.loss_mask) for sample in group])
        figures |= {id(sample): whole.where(places == place) for place, sample in enumerate(group)}
    return [figures[id(sample)] for sample in samples]


def top_reference(samples: Sequence[ScoredSample]) -> TopReference | None:
    """The most probable tokens that the samples' teacher gave when it scored them."""
    has_teacher = samples[0].teacher_top is not None
    return TopReference.of([sample.teacher_scores for sample in samples]) if has_teacher else None


def _figures(
    packed: PackedModel,
    hidden_NR: Tensor,
    targets_N: Tensor,
    reference: Reference | TopReference | None,
    config: OnPolicyConfig,
) -> TokenFigures:
    """Those of the tokens of a group."""
    size = chunk_tokens(len(targets_N), packed.num_rows, targets_N.device.type)
    buffer_CV = hidden_NR.new_empty((size, packed.num_rows), dtype=wide(hidden_NR.dtype))
    comparison = None
    if reference is not None and config.token_weights.by == "soft_or":
        comparison = _comparison(reference, targets_N, buffer_CV, config)
    entropies, overlaps, kls = [], [], []
    for first in range(0, len(targets_N), size):
        chunk = slice(first, first + size)
        logits_CV = packed.scaling.apply_(packed.head(hidden_NR[chunk]).to(buffer_CV.dtype))
        logits_CV = logits_CV.div_(config.temperature)
        if reference is not None and config.prune.is_on:
            overlaps.append(_overlap(logits_CV, _best_ids(reference, chunk, config.prune.top_k)))
        if comparison is not None:
            kls.append(comparison.chunk(chunk, logits_CV).reverse_kl_C)
        # Last: it overwrites the logits.
        entropies.append(softmax_(logits_CV, targets_N[chunk], wants={"entropy"}).entropy_N)
    return TokenFigures(_joined(entropies), _joined(overlaps) if overlaps else None, _joined(kls) if kls else None)


def _comparison(
    reference: Reference | TopReference, targets_N: Tensor, like_CV: Tensor, config: OnPolicyConfig
) -> Comparison:
    """Of the reverse KL alone, with logits that are divided by the temperature."""
    if isinstance(reference, TopReference):
        return TopComparison(reference, targets_N, (), {"reverse_kl"}, like_CV, softness=1.0)
    return TeacherComparison(reference, targets_N, (), config.temperature, {"reverse_kl"}, like_CV, softness=1.0)


def _best_ids(reference: Reference | TopReference, chunk: slice, top_k: int) -> Tensor:
    """The teacher's `top_k` most probable tokens at the positions of a chunk, as the student's ids."""
    if isinstance(reference, TopReference):
        return reference.ids_NK[chunk, :top_k]
    # Scaling and temperature keep their order.
    logits_CS = reference.head(reference.hidden_NR[chunk])[:, : reference.vocabulary]
    if reference.exchanged is not None:
        exchange_(logits_CS, *reference.exchanged)
    return logits_CS.topk(min(top_k, reference.vocabulary), dim=1).indices


def _overlap(logits_CV: Tensor, teacher_ids_CK: Tensor) -> Tensor:
    """Share of the K most probable tokens of both that they have in common."""
    ids_CK = logits_CV.topk(teacher_ids_CK.shape[1], dim=1).indices
    is_shared_CK = (ids_CK[:, :, None] == teacher_ids_CK.to(ids_CK.device)[:, None, :]).any(dim=2)
    return is_shared_CK.to(logits_CV.dtype).mean(dim=1)


def _joined(parts: Sequence[Tensor | None]) -> np.ndarray:
    return torch.cat([part for part in parts if part is not None]).double().cpu().numpy()
