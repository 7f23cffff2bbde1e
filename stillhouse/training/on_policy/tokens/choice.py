"""A batch of rollouts with the tokens that are learnt from, pruned and chosen."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from stillhouse.config import OnPolicyConfig
from stillhouse.training.model.student import Student
from stillhouse.training.on_policy.batches.batch import PRUNED_TOKENS, UNCHOSEN_TOKENS, RolloutBatch
from stillhouse.training.on_policy.batches.credit import with_weights
from stillhouse.training.on_policy.sampling.window import HIT_SHARE, WINDOW, is_hit
from stillhouse.training.on_policy.scored import ScoredSample
from stillhouse.training.on_policy.tokens.drift import drift_of
from stillhouse.training.on_policy.tokens.figures import ReferenceOf, TokenFigures, measure_tokens
from stillhouse.training.on_policy.tokens.importance import important_tokens
from stillhouse.training.on_policy.tokens.subset import first_tokens, weighted, with_loss_at

_LEARNT: Final = "learnt_tokens"
"""Metric of every batch whose tokens were chosen."""


class TokenChoice:
    """Chooses the tokens of a batch by `on_policy.prune` and `on_policy.token_weights`.

    Args:
        student: before the first update on the batch.
        config: the two sections, aggregation and temperature.
        reference_of: gives the teacher of samples at their tokens.
        keeps_top: the loss compares with the teacher's most probable tokens, which are dropped otherwise.
    """

    def __init__(self, student: Student, config: OnPolicyConfig, reference_of: ReferenceOf, *, keeps_top: bool) -> None:
        self._student = student
        self._config = config
        self._reference_of = reference_of
        self._keeps_top = keeps_top

    def is_due(self, rollouts: RolloutBatch) -> bool:
        """Whether there is a choice to make that this batch has not had."""
        config = self._config
        return (config.prune.is_on or config.token_weights.by is not None) and _LEARNT not in rollouts.metrics

    def chosen(self, rollouts: RolloutBatch) -> RolloutBatch:
        """The batch with masks, lengths and weights of its samples as chosen, and metrics of the choice."""
        samples = [sample for part in rollouts.parts for sample in part]
        figures = measure_tokens(self._student, samples, self._config, self._reference_of)
        metrics: dict[str, float] = {}
        if self._config.prune.is_on:
            samples, figures, pruned = self._pruned(samples, figures, rollouts.metrics)
            metrics |= pruned
        if self._config.token_weights.by is not None:
            masks = important_tokens(figures, self._config.token_weights)
            metrics[UNCHOSEN_TOKENS] = float(sum(np.count_nonzero(~mask_N) for mask_N in masks))
            samples = [with_loss_at(sample, mask_N) for sample, mask_N in zip(samples, masks, strict=True)]
        if not self._keeps_top:
            samples = [replace(sample, teacher_top=None) for sample in samples]
        metrics[_LEARNT] = sum(sum(sample.loss_mask) for sample in samples) / max(1, len(samples))
        remaining = iter(samples)
        parts = [with_weights([next(remaining) for _ in part], self._config) for part in rollouts.parts]
        return replace(rollouts, parts=parts, metrics={**rollouts.metrics, **metrics})

    def _pruned(
        self, samples: Sequence[ScoredSample], figures: Sequence[TokenFigures], before: Mapping[str, float]
    ) -> tuple[list[ScoredSample], list[TokenFigures], dict[str, float]]:
        """Samples and figures weighted and cut by their drift; a sample without a teacher stays as it is."""
        kept: list[ScoredSample] = []
        kept_figures: list[TokenFigures] = []
        num_cut = num_cut_tokens = num_drifted = num_hits = 0
        overlaps = [figure.overlap_N for figure in figures if figure.overlap_N is not None]
        for sample, figure in zip(samples, figures, strict=True):
            if figure.overlap_N is not None:
                drift, count = drift_of(figure.overlap_N, self._config.prune), len(figure.overlap_N)
                sample = weighted(sample, drift.weights_N.tolist())
                num_drifted += drift.num_drifted
                num_hits += is_hit(drift.num_reliable, before, self._config)
                if self._config.prune.cut and drift.num_reliable < count:
                    sample = first_tokens(sample, drift.num_reliable)
                    figure = figure.where(np.arange(count) < drift.num_reliable)
                    num_cut += 1
                    num_cut_tokens += count - drift.num_reliable
            kept.append(sample)
            kept_figures.append(figure)
        metrics = {PRUNED_TOKENS: float(num_cut_tokens), "pruned_share": num_cut / max(1, len(samples))}
        num_compared = sum(map(len, overlaps))
        if num_compared:
            metrics["top_k_overlap"] = float(np.concatenate(overlaps).mean())
            metrics["drifted_token_share"] = num_drifted / num_compared
        if WINDOW in before:
            metrics[HIT_SHARE] = num_hits / max(1, len(overlaps))
        return kept, kept_figures, metrics
