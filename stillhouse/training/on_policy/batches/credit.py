"""Advantages of tokens, weights of samples, and how several teachers share the loss of a step (`on_policy.balance`).

A trajectory of n sampled tokens has a weight w (`with_weights`), and teacher k the share s_k = sum w n over its
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
from stillhouse.training.on_policy.algorithms.grpo import GRPO
from stillhouse.training.on_policy.scored import ScoredSample, at_sampled_tokens


def with_advantages(
    samples: Sequence[ScoredSample], rewards: Sequence[float | None], algorithm: GRPO
) -> list[ScoredSample]:
    """Return the samples, of whole groups, with the `advantages` that are known before training, if there are any.

    `rewards` has one for each sample, None where it is unknown; the samples of one prompt are a group.
    """
    if not algorithm.has_advantages:
        return list(samples)
    groups: dict[str, list[int]] = {}
    for index, sample in enumerate(samples):
        groups.setdefault(sample.prompt_id, []).append(index)
    credited = list(samples)
    for indices in groups.values():
        advantages = algorithm.advantages([samples[index] for index in indices], [rewards[index] for index in indices])
        for index, values in zip(indices, advantages, strict=True):
            sample = samples[index]
            credited[index] = replace(sample, advantages=at_sampled_tokens(values, sample.loss_mask))
    return credited


def with_weights(samples: Sequence[ScoredSample], config: OnPolicyConfig) -> list[ScoredSample]:
    """Return the samples of one optimiser step, of every rank, with the `weight` that makes their losses its loss.

    The trainer minimises the sum of weight * loss over all loss positions of the step, divided by their number N. Every
    aggregation is a choice of weights, one a trajectory, so that no split into microbatches can matter.
    With B trajectories of n tokens each that were sampled, N together, the weights of their tokens are

        token_mean                  1                       mean over all tokens
        sequence_mean_token_mean    N / (B n)               mean over trajectories of the mean over their tokens
        sequence_mean_token_sum     N / B                   mean over trajectories of the sum over their tokens
        constant                    N / (B * max_tokens)    sum over B * max_tokens (Dr. GRPO, arXiv 2503.20783)
        token_sum                   N                       sum over all tokens

    Trajectories without a sampled token do not count. `on_policy.balance` then shares the loss among several teachers.
    """
    counts = [sum(sample.loss_mask) for sample in samples]
    num_tokens, num_trajectories = sum(counts), sum(count > 0 for count in counts)

    def weight(count: int) -> float:
        match config.aggregation:
            case "token_mean":
                return 1.0
            case "sequence_mean_token_mean":
                return num_tokens / (num_trajectories * count)
            case "sequence_mean_token_sum":
                return num_tokens / num_trajectories
            case "constant":
                return num_tokens / (num_trajectories * config.max_tokens)
            case "token_sum":
                return float(num_tokens)

    weighted = [
        replace(sample, weight=weight(count)) if count else sample
        for sample, count in zip(samples, counts, strict=True)
    ]
    return balanced(weighted, config)


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
