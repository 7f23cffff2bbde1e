"""How several teachers share the loss of an optimiser step (`on_policy.balance`).

A trajectory of n sampled tokens has a weight w (`credit.with_weights`), and teacher k the share s_k = sum w n over its
trajectories / sum w n over those of all teachers. With `none` that is what lengths and numbers of prompts make it: in
Open-MOPD (arXiv 2608.19098) 20 % of the prompts, with short answers, are 1 % of the tokens, and the plain sum of three
teachers recovers 35.6 % of the headroom. Otherwise each weight is multiplied by a factor of its teacher, one of K that
have a sampled token in the step:

    teachers   t_k / s_k,  t_k = 1 / K                                             Open-MOPD's token-share balancing
    gaps       t_k / s_k,  t_k = g_k / sum g,  g_k = clip(m_k / mean m, 0.05, 20)  with its gap-following allocation
    spreads    clip(sigma / sigma_k, 0.25, 4)                                      DN-MOPD (arXiv 2609.35347)

Of d = log student - log teacher of the sampled tokens, as they were sampled, m_k is the mean of |d| of teacher k,
sigma_k its standard deviation, and sigma that of all teachers' tokens together. With `teachers` the loss is the mean
over teachers of the loss that each would have alone. `teachers` and `gaps` keep the sum of w n, and so the learning
rate. Bounds are those of the papers' published code (`compute_domain_loss_weights` with equal targets and an alpha of 1
that multiplies, its reference being the mean here; `domain_multipliers`).

Open-MOPD recovers 83.4 % with `gaps` and d under the weights being trained (`advantage_against: current`); DN-MOPD's
total rises from 58.4 to 59.6 with `spreads` and the mean over trajectories of the mean over their tokens. They disagree
on scale: `gaps` gives more to a teacher that is far, and Open-MOPD saw the inverse collapse; `spreads` gives less to
one whose d scatters. None reads anything but the step itself, so that a resumed training has the same weights.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from stillhouse.config import OnPolicyConfig
from stillhouse.training.on_policy.scored import ScoredSample

_GAP_BOUNDS: Final = (0.05, 20.0)
_SPREAD_BOUNDS: Final = (0.25, 4.0)


def balanced(samples: Sequence[ScoredSample], config: OnPolicyConfig) -> list[ScoredSample]:
    """The samples with their weights times the factor of their teacher; those without a teacher as they are.

    A weight is a factor of all of a trajectory's loss, also of what rewards make of it.

    Args:
        samples: all of one optimiser step, of every rank, with the weights of their aggregation.
        config: has the balance; `gaps` and `spreads` need the teachers' log-probabilities.
    """
    factors = _factors(samples, config)
    return [
        replace(sample, weight=sample.weight * factors[sample.teacher]) if sample.teacher in factors else sample
        for sample in samples
    ]


def teacher_shares(samples: Sequence[ScoredSample]) -> dict[str, float]:
    """The share s_k of each teacher with a sampled token, by name."""
    sums = {
        name: math.fsum(sample.weight * sum(sample.loss_mask) for sample in of_teacher)
        for name, of_teacher in _by_teacher(samples).items()
    }
    total = math.fsum(sums.values())
    return {name: value / total for name, value in sums.items()}


def _factors(samples: Sequence[ScoredSample], config: OnPolicyConfig) -> Mapping[str | None, float]:
    shares = teacher_shares(samples)
    if config.balance == "none" or not shares:
        return {}
    if config.balance == "teachers":
        return {name: 1.0 / (len(shares) * share) for name, share in shares.items()}
    kls = {name: _sampled_kls(of_teacher) for name, of_teacher in _by_teacher(samples).items()}
    if config.balance == "spreads":
        whole = float(np.concatenate([*kls.values()]).std())
        return {name: _quotient(whole, float(values.std()), _SPREAD_BOUNDS) for name, values in kls.items()}
    means = {name: float(np.abs(values).mean()) for name, values in kls.items()}
    middle = math.fsum(means.values()) / len(means)
    gaps = {name: _quotient(mean, middle, _GAP_BOUNDS) for name, mean in means.items()}
    return {name: gap / (math.fsum(gaps.values()) * shares[name]) for name, gap in gaps.items()}


def _by_teacher(samples: Sequence[ScoredSample]) -> dict[str, list[ScoredSample]]:
    """Those with a teacher and a sampled token, in the order of the teachers' names."""
    by_name: dict[str, list[ScoredSample]] = {}
    for sample in samples:
        if sample.teacher is not None and any(sample.loss_mask):
            by_name.setdefault(sample.teacher, []).append(sample)
    return dict(sorted(by_name.items()))


def _sampled_kls(samples: Sequence[ScoredSample]) -> NDArray[np.float64]:
    """The d of every sampled token."""
    return np.concatenate([np.compress(sample.loss_mask, sample.sampled_kl or ()) for sample in samples])


def _quotient(over: float, under: float, bounds: tuple[float, float]) -> float:
    """Within the bounds; 1 where nothing scatters, or no token has a gap."""
    return float(np.clip(over / under, *bounds)) if under else 1.0
