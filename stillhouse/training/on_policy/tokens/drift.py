"""Reliability of the teacher along a rollout that drifts from it (`on_policy.prune`).

The student's prefix may lead where the teacher would not have gone, and there the teacher's scores tell little. With
o_t the share of the student's k most probable tokens that are among the teacher's k, for each sampled token t

    r_t = max(0, 1 - weight_drop * number of tokens u <= t with o_u < min_overlap)
    w_t = (r_t + base_weight) / (1 + base_weight)                    weight of the token's loss

so that the weight only falls, and the rollout ends behind the last token with r_t > 0. This is Prune-OPD (arXiv
2605.07804: top-k overlap, cumulative decay, dynamic response budget) but for the constant factor of w, which is 1 at
the start of a rollout here and 1 + base_weight there. On AMC, AIME and HMMT it took 38 to 68 % less time than whole
rollouts, at the same accuracy or a better one.
"""

from typing import Final, NamedTuple

import numpy as np

from stillhouse.config import PruneConfig

_USED_UP: Final = 1e-8
"""Reliability that is rounding of 0."""


class Drift(NamedTuple):
    """Of the N sampled tokens of a rollout, in order."""

    weights_N: np.ndarray
    """Factors of their losses: at most 1, never rising."""
    num_reliable: int
    """Tokens before the reliability is used up; at least the first."""
    num_drifted: int
    """Tokens with less overlap than `min_overlap`."""


def drift_of(overlap_N: np.ndarray, config: PruneConfig) -> Drift:
    """The drift of a rollout of at least one token, by the overlap at each."""
    is_drifted_N = overlap_N < config.min_overlap
    reliability_N = np.maximum(0.0, 1.0 - config.weight_drop * np.cumsum(is_drifted_N))
    weights_N = (reliability_N + config.base_weight) / (1.0 + config.base_weight)
    num_reliable = int(np.count_nonzero(reliability_N > _USED_UP))
    return Drift(weights_N, max(1, num_reliable), int(is_drifted_N.sum()))
