"""How the losses of tokens become the loss of a batch.

The trainer minimises the sum of weight * loss over all loss positions of the batch, divided by their number N. Every
way of aggregating is a choice of weights, one a trajectory, so that no split into microbatches can matter.
"""

from collections.abc import Sequence
from dataclasses import replace

from stillhouse.config import OnPolicyConfig
from stillhouse.training.on_policy.scored import ScoredSample


def weighted(samples: Sequence[ScoredSample], config: OnPolicyConfig) -> list[ScoredSample]:
    """The samples of one optimiser step with their `weight`.

    With B trajectories of n tokens each that were sampled, N together, the weights of their tokens are

        token_mean                  1                       mean over all tokens
        sequence_mean_token_mean    N / (B n)               mean over trajectories of the mean over their tokens
        sequence_mean_token_sum     N / B                   mean over trajectories of the sum over their tokens
        constant                    N / (B * max_tokens)    sum over B * max_tokens (Dr. GRPO, arXiv 2503.20783)
        token_sum                   N                       sum over all tokens

    Trajectories without a sampled token do not count.

    Args:
        samples: all of one optimiser step, of every rank: what it divides by is known only then.
        config: aggregation and max_tokens.
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

    return [
        replace(sample, weight=weight(count)) if count else sample
        for sample, count in zip(samples, counts, strict=True)
    ]
