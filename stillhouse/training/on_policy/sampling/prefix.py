"""The prefixes that are sampled in place of whole trajectories (`on_policy.prefix`).

What a student learns from its teacher is mostly in the first part of its answers, and sampling is what takes the time:
loss on a prefix and no sampling behind it took 2 to 47 times fewer training FLOPs at the accuracy of whole answers, on
mathematics; with a prefix that grows, less than half (Fast and Effective On-policy Distillation from Reasoning
Prefixes, arXiv 2602.15260). A prefix counts the tokens that the student samples, all turns of a trajectory together;
what tools answer is not counted.
"""

from stillhouse.config import OnPolicyConfig


def prefix_tokens(config: OnPolicyConfig, index: int) -> int | None:
    """Most tokens that are sampled of a trajectory of batch `index`; None for all."""
    first, last = config.prefix.tokens, config.prefix.final_tokens
    if first is None or last is None or config.num_batches == 1:
        return first if last is None else last
    return first + round((last - first) * index / (config.num_batches - 1))
