"""How several teachers share the loss of an optimiser step (`on_policy.balance`).

A trajectory of n sampled tokens has a weight w (`credit.with_weights`), and teacher k the share s_k = sum w n over its
trajectories / sum w n over those of all teachers. With `none` that is what lengths and numbers of prompts make it: in
Open-MOPD (arXiv 2608.19098) 20 % of the prompts, with short answers, are 1 % of the tokens, and the plain sum of three
teachers recovers 35.6 % of the headroom. With `teachers` each weight is multiplied by 1 / (K s_k), of K teachers that
have a sampled token in the step (its token-share balancing): the loss is the mean over teachers of the loss that each
would have alone. The sum of w n stays, and so the learning rate. Nothing but the step itself is read, so that a resumed
training has the same weights.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from stillhouse.config import OnPolicyConfig
from stillhouse.training.on_policy.scored import ScoredSample


def balanced(samples: Sequence[ScoredSample], config: OnPolicyConfig) -> list[ScoredSample]:
    """Return the samples of one optimiser step, of every rank, with their weights times the factor of their teacher.

    A weight is a factor of all of a trajectory's loss, also of what rewards make of it. Samples without a teacher stay.
    """
    shares = teacher_shares(samples) if config.balance == "teachers" else {}
    factors: Mapping[str | None, float] = {name: 1.0 / (len(shares) * share) for name, share in shares.items()}
    return [
        replace(sample, weight=sample.weight * factors[sample.teacher]) if sample.teacher in factors else sample
        for sample in samples
    ]


def teacher_shares(samples: Sequence[ScoredSample]) -> dict[str, float]:
    """Return the share s_k of each teacher with a sampled token, by name."""
    by_name: dict[str, list[float]] = {}
    for sample in samples:
        if sample.teacher is not None and any(sample.loss_mask):
            by_name.setdefault(sample.teacher, []).append(sample.weight * sum(sample.loss_mask))
    sums = {name: math.fsum(weights) for name, weights in sorted(by_name.items())}
    total = math.fsum(sums.values())
    return {name: value / total for name, value in sums.items()}
