"""Advantages of tokens and weights of samples."""

from collections.abc import Sequence
from dataclasses import replace

from stillhouse.config import OnPolicyConfig
from stillhouse.training.on_policy.algorithms.algorithm import Algorithm
from stillhouse.training.on_policy.batches.balance import balanced
from stillhouse.training.on_policy.batches.batch import SKIPPED_TOKENS
from stillhouse.training.on_policy.masks import at_sampled_tokens, without_first
from stillhouse.training.on_policy.scored import ScoredSample


def with_advantages(
    samples: Sequence[ScoredSample], rewards: Sequence[float | None], algorithm: Algorithm
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


def without_first_tokens(samples: list[ScoredSample], num_tokens: int) -> tuple[list[ScoredSample], dict[str, float]]:
    """Return the samples with a `loss_mask` without the first sampled tokens of each, and the metric `skipped_tokens`.

    One of no more sampled tokens is not trained on. That tokens bear no loss means nothing to the others: their
    advantages are as they were.
    """
    if num_tokens == 0:
        return samples, {}
    kept = [
        replace(
            sample,
            loss_mask=without_first(sample.loss_mask, num_tokens),
            teacher_top=sample.teacher_top and sample.teacher_top.part(num_tokens, sum(sample.loss_mask)),
            teacher_view=sample.teacher_view
            and replace(sample.teacher_view, loss_mask=without_first(sample.teacher_view.loss_mask, num_tokens)),
        )
        for sample in samples
    ]
    num_skipped = sum(sum(sample.loss_mask) for sample in samples) - sum(sum(sample.loss_mask) for sample in kept)
    return kept, {SKIPPED_TOKENS: float(num_skipped)}


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
