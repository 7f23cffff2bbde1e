"""The most important tokens of each trajectory (`on_policy.token_weights`).

What a student has to learn is at tokens where it is unsure, and at those where it is sure and its teacher disagrees.
With H_t the student's entropy and D_t = KL(student || teacher) at the sampled token t, each scaled over the batch to 0
to 1 by its least and largest value, the importance is one of

    entropy    h_t                              the student's entropy alone
    soft_or    h_t + d_t - h_t * d_t            large where either is

The `keep * n` most important of a trajectory's n tokens weigh 1 and the others 0; the loss is the mean over the kept
ones, so that the learning rate keeps its meaning. This is TIP (Token Importance in On-Policy Distillation, arXiv
2604.14084, equations 1, 5 and 7). Of Qwen3-8B to 4B it reports 79.1 % on MATH-500 with soft_or and 78.6 % with
entropy, at half of the tokens, of 76.7 % with all; at a fifth 77.6 and 74.1 %. As in implementations of it, entropies
above the 98 % quantile of the batch count as that quantile, so that one token does not set the scale. Reinforcement
learning from the fifth of tokens with the highest entropy does as well as from all (arXiv 2506.01939).
"""

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from stillhouse.config import TokenWeightsConfig
from stillhouse.training.on_policy.tokens.figures import TokenFigures

_LARGEST_ENTROPY: Final = 0.98
"""Quantile."""


def important_tokens(figures: Sequence[TokenFigures], config: TokenWeightsConfig) -> list[np.ndarray]:
    """For each trajectory of a batch which of its N tokens are learnt from, bool [N]."""
    entropy = np.concatenate([one.entropy_N for one in figures])
    if not entropy.size:
        return [np.zeros(0, dtype=bool) for _ in figures]
    scores = _scaled(np.minimum(entropy, np.quantile(entropy, _LARGEST_ENTROPY)))
    if config.by == "soft_or":
        # Without a teacher nothing disagrees.
        kls = [np.zeros_like(one.entropy_N) if one.reverse_kl_N is None else one.reverse_kl_N for one in figures]
        divergence = _scaled(np.concatenate(kls))
        scores = scores + divergence - scores * divergence
    ends = np.cumsum([len(one.entropy_N) for one in figures])
    return [_largest(part, config.keep) for part in np.split(scores, ends[:-1])]


def _scaled(values: np.ndarray) -> np.ndarray:
    """From 0 for the least to 1 for the largest; 0 if all are equal."""
    least, span = values.min(), np.ptp(values)
    return (values - least) / span if span > 0.0 else np.zeros_like(values)


def _largest(scores_N: np.ndarray, share: float) -> np.ndarray:
    """A mask of the largest share, at least one if there is any; of equal ones the first."""
    order = np.argsort(-scores_N, kind="stable")
    mask = np.zeros(len(scores_N), dtype=bool)
    mask[order[: math.ceil(share * len(scores_N))]] = True
    return mask
