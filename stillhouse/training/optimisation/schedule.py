"""The learning rate of a step."""

import math

from stillhouse.config import TrainerConfig


def learning_rate(config: TrainerConfig, step: int, num_steps: int) -> float:
    """Learning rate of step `step`, counted from 0, of `num_steps`.

    It rises by equal parts over `warmup_steps`, the last of which has the peak rate, and then follows `schedule` down:
    `linear` and `cosine` would reach zero at step `num_steps`.
    """
    if step < config.warmup_steps:
        return config.learning_rate * (step + 1) / config.warmup_steps
    progress = (step - config.warmup_steps) / max(1, num_steps - config.warmup_steps)
    match config.schedule:
        case "constant":
            return config.learning_rate
        case "linear":
            return config.learning_rate * (1.0 - progress)
        case "cosine":
            return config.learning_rate * 0.5 * (1.0 + math.cos(math.pi * progress))
