"""pass@k: the chance that at least one of k trajectories of a prompt is right."""

import math
from collections.abc import Sequence


def pass_at_k(num_samples: int, num_right: int, k: int) -> float:
    """Unbiased estimate from `num_samples` trajectories of one prompt, `num_right` of them right.

        1 - C(n - c, k) / C(n, k)

    Chen et al. 2021, "Evaluating large language models trained on code", equation 1 (arXiv 2107.03374).

    Raises:
        ValueError: not 0 <= num_right <= num_samples, or not 1 <= k <= num_samples.
    """
    if not 0 <= num_right <= num_samples or not 1 <= k <= num_samples:
        raise ValueError(
            f"pass@{k} of {num_right} right among {num_samples}: expected 0 <= right <= samples and 1 <= k <= samples"
        )
    return 1.0 - math.comb(num_samples - num_right, k) / math.comb(num_samples, k)


def mean_pass_at_k(groups: Sequence[Sequence[bool]]) -> dict[str, float]:
    """Mean pass@k over prompts for k = 1, 2, 4, ... up to the largest group; empty if no prompt has two trajectories.

    Args:
        groups: For each prompt, whether each of its trajectories is right. A prompt with fewer than k trajectories,
            some having failed, is left out of pass@k.
    """
    largest = max(map(len, groups), default=0)
    if largest < 2:
        return {}
    means = {}
    k = 1
    while k <= largest:
        estimates = [pass_at_k(len(group), sum(group), k) for group in groups if len(group) >= k]
        means[str(k)] = math.fsum(estimates) / len(estimates)
        k *= 2
    return means
