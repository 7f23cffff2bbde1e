"""The learning rate of a step."""

import math

from stillhouse.config import TrainerConfig


def learning_rate(config: TrainerConfig, step: int, num_steps: int) -> float:
    """Learning rate of step `step`, counted from 0, of `num_steps`.

    It rises by equal parts over `warmup_steps`, the last of which has the peak rate, and then follows `schedule`:
    `linear` and `cosine` fall from there, `wsd` (warm-up, stable, decay: arXiv 2404.06395) falls linearly over the last
    `decay_share` of all steps. Each would reach `min_learning_rate` at step `num_steps`, the first that is not taken.
    """
    peak, least = config.learning_rate, config.min_learning_rate
    if step < config.warmup_steps:
        return peak * (step + 1) / config.warmup_steps
    match config.schedule:
        case "constant":
            return peak
        case "linear":
            share = 1.0 - _progress(step, config.warmup_steps, num_steps)
        case "cosine":
            share = 0.5 * (1.0 + math.cos(math.pi * _progress(step, config.warmup_steps, num_steps)))
        case "wsd":
            start = max(config.warmup_steps, num_steps * (1.0 - config.decay_share))
            share = 1.0 - _progress(step, start, num_steps)
    return least + (peak - least) * share


def _progress(step: int, start: float, end: int) -> float:
    """How far `step` is from `start`, as 0, to `end`, as 1."""
    return min(1.0, max(0.0, (step - start) / max(1.0, end - start)))
