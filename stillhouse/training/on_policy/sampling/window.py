"""How many tokens of each trajectory are sampled, by where the rollouts of earlier batches drift (`on_policy.prune`).

Prune-OPD (arXiv 2605.07804) gives rollouts a budget that follows how far they are reliable, and so saves sampling and
scoring, not training alone. A rollout hits the window if it is reliable until `window_step` tokens before its end. A
batch in which a tenth of the rollouts do so makes the next window longer by `window_step` tokens, and three batches in
a row in which fewer do make it shorter by as many; those figures are the authors' settings (hit ratio 0.1, margin and
step 100, patience 3).

The state is in the metrics of each batch, which are on disk before the next one is sampled, so that a resumed training
samples the same.
"""

from collections.abc import Mapping
from typing import Final

from stillhouse.config import OnPolicyConfig

WINDOW: Final = "window_tokens"
"""Metric: tokens sampled of each trajectory of a batch."""
HIT_SHARE: Final = "window_hit_share"
"""Metric: rollouts of the batch that hit its window."""
_MISSES: Final = "window_misses"
"""Metric: batches in a row, before this one, in which too few did."""
_ENOUGH: Final = 0.1
_PATIENCE: Final = 3


def next_window(config: OnPolicyConfig, last: Mapping[str, float] | None) -> dict[str, float]:
    """The metrics that hold the window of a batch; none without `prune.window`.

    Args:
        config: the first window, which is the least, and its step.
        last: metrics of the batch before; None for the first, and where they are lost.
    """
    least, step = config.prune.window, config.prune.window_step
    if least is None:
        return {}
    if last is None:
        return {WINDOW: float(least), _MISSES: 0.0}
    if last[HIT_SHARE] >= _ENOUGH:
        return {WINDOW: last[WINDOW] + step, _MISSES: 0.0}
    misses = last[_MISSES] + 1.0
    if misses < _PATIENCE:
        return {WINDOW: last[WINDOW], _MISSES: misses}
    return {WINDOW: max(float(least), last[WINDOW] - step), _MISSES: 0.0}


def is_hit(num_reliable: int, metrics: Mapping[str, float], config: OnPolicyConfig) -> bool:
    """Whether a rollout with so many reliable tokens, those without loss left out, hits the window of its batch."""
    if WINDOW not in metrics:
        return False
    return num_reliable + config.skip_first_n_tokens >= metrics[WINDOW] - config.prune.window_step
