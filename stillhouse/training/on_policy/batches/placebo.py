"""Scores that say nothing of the tokens they are given to, in place of the teacher's (`promotion.placebo`).

With d_t = log p_student(t) - log p_teacher(t) of the sampled tokens of a batch, as they were sampled,

    shuffled    d'_t = d_pi(t)           pi a random permutation of all scored tokens of the batch
    constant    d'_t = mean of |d|       over the same tokens

d' and not the teacher's log-probability is shuffled: the advantages then keep their distribution, and with it the size
of the updates. A shuffled log p_teacher would leave log p_student of the token itself in d', which drives the entropy
up. By -d' as advantage, `constant` has one negative advantage at every token. Where the student samples from its own
distribution the mean gradient of both is zero, E[c * grad log p] = 0; what they change in a student is what a training
changes without information: by its noise, its clipping, its lengths, its sampling at another temperature.

Everything that is computed of the KL follows: advantages, KL in the reward, metrics. Rewards stay as they are.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import compress

import numpy as np

from stillhouse.config import Placebo
from stillhouse.training.on_policy.masks import at_sampled_tokens
from stillhouse.training.on_policy.scored import ScoredSample


def with_placebo(samples: Sequence[ScoredSample], placebo: Placebo, seed: int, index: int) -> list[ScoredSample]:
    """The samples with the `teacher_logprobs` that a teacher with the scores d' would have given.

    Args:
        samples: all of a batch; those without a teacher stay as they are.
        placebo: what d' is.
        seed: of the training.
        index: of the batch; a batch made again gets the same permutation.
    """
    kls = np.array([kl for sample in samples for kl in compress(sample.sampled_kl or (), sample.loss_mask)])
    if kls.size == 0:
        return list(samples)
    if placebo == "shuffled":
        kls = np.random.default_rng([seed, index]).permutation(kls)
    else:
        kls = np.full_like(kls, np.abs(kls).mean())
    remaining = iter(kls.tolist())
    return [sample if sample.teacher_logprobs is None else _scored_by(remaining, sample) for sample in samples]


def _scored_by(kls: Iterator[float], sample: ScoredSample) -> ScoredSample:
    assert sample.sampling_logprobs is not None
    sampled = compress(sample.sampling_logprobs, sample.loss_mask)
    teacher_logprobs = [logprob - next(kls) for logprob in sampled]
    return replace(sample, teacher_logprobs=at_sampled_tokens(teacher_logprobs, sample.loss_mask))
