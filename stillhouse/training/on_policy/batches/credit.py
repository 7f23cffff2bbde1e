"""Advantages of tokens, weights of trajectories, and teachers' shares of the loss of a step (`on_policy.balance`).

A trajectory of n sampled tokens has a weight w (`weights`), and teacher k the share s_k = sum w n over its
trajectories / sum w n over those of all teachers. With `none` that is what lengths and numbers of prompts make it: in
Open-MOPD (arXiv 2608.19098) 20 % of the prompts, with short answers, are 1 % of the tokens, and the plain sum of three
teachers recovers 35.6 % of the headroom. With `teachers` each weight is multiplied by 1 / (K s_k), of K teachers that
have a sampled token in the step (its token-share balancing): the loss is the mean over teachers of the loss that each
would have alone. The sum of w n stays, and so the learning rate. Nothing but the step itself is read, so that a resumed
training has the same weights.
"""

import math
from collections.abc import Sequence

import numpy as np

from stillhouse.config import OnPolicyConfig
from stillhouse.training.on_policy.algorithms.grpo import GRPO
from stillhouse.training.on_policy.table import RolloutTable


def advantages(table: RolloutTable, rewards: Sequence[float | None], algorithm: GRPO) -> np.ndarray | None:
    """Return the advantages of tokens that are known before training, if there are any.

    `rewards` has one for each trajectory, None where it is unknown; those of one prompt are a group.
    """
    if not algorithm.has_advantages:
        return None
    groups: dict[str, list[int]] = {}
    for number, prompt_id in enumerate(table.prompt_id):
        groups.setdefault(prompt_id, []).append(number)
    credits = np.zeros(len(table))
    for numbers in groups.values():
        credits[numbers] = algorithm.advantages([rewards[number] for number in numbers])
    return np.where(table.loss_mask, table.spread(credits), 0.0)


def weights(table: RolloutTable, config: OnPolicyConfig) -> np.ndarray:
    """Return the weights of trajectories that make their losses the loss of their optimiser step.

    The trainer minimises the sum of weight * loss over all loss positions of the step, divided by their number N. Every
    aggregation is a choice of weights, one a trajectory, so that no split into microbatches can matter.
    With B trajectories of n tokens each that were sampled, N together, the weights of their tokens are

        token_mean                  1                       mean over all tokens
        sequence_mean_token_mean    N / (B n)               mean over trajectories of the mean over their tokens
        sequence_mean_token_sum     N / B                   mean over trajectories of the sum over their tokens
        constant                    N / (B * max_tokens)    sum over B * max_tokens (Dr. GRPO, arXiv 2503.20783)
        token_sum                   N                       sum over all tokens

    Trajectories without a sampled token do not count. `on_policy.balance` then shares the loss among several teachers:
    a weight is a factor of all of a trajectory's loss, also of what rewards make of it.
    """
    made, counts = np.ones(len(table)), table.counts
    for part in range(table.num_parts):
        numbers = np.flatnonzero((table.part == part) & (counts > 0))
        made[numbers] = _aggregated(counts[numbers], config)
        if config.balance == "teachers":
            shares = teacher_shares(table, made, numbers)
            factors: dict[str | None, float] = {name: 1.0 / (len(shares) * share) for name, share in shares.items()}
            made[numbers] *= [factors.get(table.teacher[number], 1.0) for number in numbers]
    return made


def _aggregated(counts: np.ndarray, config: OnPolicyConfig) -> np.ndarray | float:
    num_tokens, num_trajectories = int(counts.sum()), len(counts)
    match config.aggregation:
        case "token_mean":
            return 1.0
        case "sequence_mean_token_mean":
            return num_tokens / (num_trajectories * counts)
        case "sequence_mean_token_sum":
            return num_tokens / max(1, num_trajectories)
        case "constant":
            return num_tokens / max(1, num_trajectories * config.max_tokens)
        case "token_sum":
            return float(num_tokens)


def teacher_shares(table: RolloutTable, weights: np.ndarray, numbers: Sequence[int] | np.ndarray) -> dict[str, float]:
    """Return the share s_k of each teacher with a sampled token in the trajectories of `numbers`, by name."""
    sizes, by_name = weights * table.counts, dict[str, list[float]]()
    for number in numbers:
        name = table.teacher[number]
        if name is not None and sizes[number]:
            by_name.setdefault(name, []).append(float(sizes[number]))
    sums = {name: math.fsum(values) for name, values in sorted(by_name.items())}
    total = math.fsum(sums.values())
    return {name: value / total for name, value in sums.items()}
