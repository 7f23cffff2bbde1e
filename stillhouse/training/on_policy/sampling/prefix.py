"""The prefixes that are sampled in place of whole trajectories (`on_policy.prefix`).

Sampling is what takes the time, and on mathematics most of what a student learns is in the first part of its answers:
loss on a prefix and no sampling behind it took 2 to 47 times fewer training FLOPs at the accuracy of whole answers, a
prefix that grows less than half (Fast and Effective On-policy Distillation from Reasoning Prefixes, arXiv 2602.15260).
A prefix counts the tokens that the student samples, all turns of a trajectory together, and not what tools answer.
"""

from stillhouse.config import OnPolicyConfig


def prefix_tokens(config: OnPolicyConfig, index: int) -> int | None:
    """Most tokens that are sampled of a trajectory of batch `index`; None for all."""
    first, last = config.prefix.tokens, config.prefix.final_tokens
    if first is None or last is None or config.num_batches == 1:
        return first if last is None else last
    return first + round((last - first) * index / (config.num_batches - 1))
