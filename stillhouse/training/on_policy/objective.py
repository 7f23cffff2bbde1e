"""Values per token for an `GRPO`, its losses, and their metrics.

Dimensions: N loss positions.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from stillhouse.config import Divergence
from stillhouse.training.head.scores import TokenLosses, TokenScores
from stillhouse.training.losses import reverse_kl, reverse_kl_k3
from stillhouse.training.on_policy.algorithms.algorithm import LossInputs
from stillhouse.training.on_policy.algorithms.grpo import GRPO
from stillhouse.training.on_policy.scored import ScoredSample
from stillhouse.training.on_policy.user_loss import UserLoss
from stillhouse.types import Sample

NO_INDEX = -1
"""Stands for no teacher or no route."""


@dataclass(frozen=True, slots=True)
class _SampledKL:
    """The reverse KL of the sampled tokens; 0.0 at tokens without a score."""

    now_N: Tensor
    """Under the weights being trained."""
    teacher_logprobs_N: Tensor
    is_scored_N: Tensor


class Objective:
    """Values per token, and their losses; without `teachers`, by rewards alone."""

    def __init__(self, algorithm: GRPO, teachers: Sequence[str] = (), routes: Sequence[str] = ()) -> None:
        config = algorithm.config
        self.algorithm = algorithm
        self._config = config
        self._teachers = list(teachers)
        self.routes = list(routes)
        """Values of `ScoredSample.route` that metrics are reported by."""
        self.is_exact = bool(teachers) and bool(algorithm.divergence)
        """True if teachers give their distribution, not only scores of the sampled tokens."""
        self.is_scored_ahead = not self.is_exact or config.source == "rollouts"
        """True if teachers in this process score a batch before it is trained on."""
        self.divergence: tuple[Divergence, ...] = algorithm.divergence if teachers else ()
        """Terms that the head computes."""
        self.wants_entropy = True
        """Scores that the head computes."""
        is_sampled_elsewhere = config.engine_url is not None or config.correction != "none"
        self.needs_old_logprobs = config.updates_per_batch > 1 and is_sampled_elsewhere
        """True if samples need `old_logprobs`."""
        self._losses = algorithm.losses if config.loss is None else UserLoss(config.loss)

    def partition(self, sample: Sample) -> str:
        """Return the sample's teacher for exact divergences, which compare with one at a time; else an empty key."""
        return _scored(sample).teacher or "" if self.is_exact else ""

    def token_values(self, sample: Sample) -> dict[str, Sequence[float]]:
        """Return the inputs of the loss for each token, by name; all samples have the same names."""
        sample = _scored(sample)
        size = len(sample.token_ids)
        values: dict[str, Sequence[float]] = {"sampling": sample.sampling_logprobs or []}
        if self.needs_old_logprobs:
            values["old"] = sample.old_logprobs or []
        if self.algorithm.has_advantages:
            values["advantage"] = sample.advantages or []
        if self._config.aggregation != "token_mean" or self._config.balance != "none":
            values["weight"] = [sample.weight] * size
        if self._teachers:
            values["kl_coef"] = [sample.kl_coef if sample.teacher else 0.0] * size
            values["teacher"] = [NO_INDEX if sample.teacher is None else self._teachers.index(sample.teacher)] * size
            if not self.is_exact:
                values["teacher_logprob"] = (sample.teacher_logprobs or []) if sample.teacher else [0.0] * size
        if self._teachers and self.routes:
            values["route"] = [self.routes.index(sample.route) if sample.route in self.routes else NO_INDEX] * size
        return values

    def loss(self, scores: TokenScores, values: Mapping[str, Tensor]) -> TokenLosses:
        """Return the loss of each token and its metrics; all microbatches have the same names."""
        assert scores.entropy_N is not None
        log_ratios_N = scores.logprobs_N.detach() - values["sampling"]
        kl = self._sampled_kl(scores, values) if self._teachers else None
        losses = self._losses(_inputs(scores, values, kl))
        losses_N = losses.losses_N * values["weight"] if "weight" in values else losses.losses_N
        return TokenLosses(
            losses_N,
            means=losses.means | {"entropy": scores.entropy_N, "log_ratio_mean": log_ratios_N},
            ratios={} if kl is None else self._kl_by_name(kl, scores, values),
            maxima={"log_ratio_abs_max": log_ratios_N.abs()},
        )

    def _sampled_kl(self, scores: TokenScores, values: Mapping[str, Tensor]) -> _SampledKL:
        is_scored_N = values["teacher"] != NO_INDEX
        if self.is_exact:
            assert scores.reference_logprobs_N is not None
            teacher_N = scores.reference_logprobs_N
            # The teacher does not have this token id.
            is_scored_N = is_scored_N & teacher_N.isfinite()
        else:
            teacher_N = values["teacher_logprob"]
        now_N = torch.where(is_scored_N, reverse_kl(scores.logprobs_N, teacher_N), 0.0)
        return _SampledKL(now_N, teacher_N, is_scored_N)

    def _kl_by_name(
        self, kl: _SampledKL, scores: TokenScores, values: Mapping[str, Tensor]
    ) -> dict[str, tuple[Tensor, Tensor]]:
        """Return numerator and denominator of the mean over scored tokens, by metric."""
        k3_N = torch.where(kl.is_scored_N, reverse_kl_k3(scores.logprobs_N.detach(), kl.teacher_logprobs_N), 0.0)
        summed = {"teacher_kl": kl.now_N, "teacher_kl_k3": k3_N}
        if scores.divergence_N is not None:
            summed["divergence"] = scores.divergence_N.detach()
        weights_N = kl.is_scored_N.to(kl.now_N.dtype)
        ratios = {name: (sums_N * weights_N, weights_N) for name, sums_N in summed.items()}
        groups = [("teacher_kl", values["teacher"], self._teachers)]
        if "route" in values:
            groups.append((f"teacher_kl_by_{self._config.route_by}", values["route"], self.routes))
        for prefix, indices_N, names in groups:
            for index, name in enumerate(names):
                of_name_N = weights_N * (indices_N == index)
                ratios[f"{prefix}/{name}"] = (kl.now_N * of_name_N, of_name_N)
        return ratios


def _inputs(scores: TokenScores, values: Mapping[str, Tensor], kl: _SampledKL | None) -> LossInputs:
    none_N = torch.zeros_like(values["sampling"])
    return LossInputs(
        student_logprobs_N=scores.logprobs_N,
        sampling_logprobs_N=values["sampling"],
        old_logprobs_N=values.get("old"),
        advantages_N=values.get("advantage", none_N),
        kl_coef_N=values.get("kl_coef", none_N),
        sampled_kl_N=none_N if kl is None else kl.now_N,
        divergence_N=scores.divergence_N,
    )


def _scored(sample: Sample) -> ScoredSample:
    assert isinstance(sample, ScoredSample)
    return sample
