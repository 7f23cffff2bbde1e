"""How often the rule of promotion errs: simulated models on prompts of their own difficulty, and the real decision."""

import numpy as np

from stillhouse.config import PromotionConfig
from stillhouse.evaluation.comparison import MetricComparison
from stillhouse.evaluation.paired import Difference, mcnemar
from stillhouse.evaluation.promotion import decide

NUM_PROMPTS, NUM_SEEDS, LEVEL = 200, 1000, 0.05
# Two standard deviations of a share of 5 % among so many seeds.
MOST = LEVEL + 2 * (LEVEL * (1 - LEVEL) / NUM_SEEDS) ** 0.5


def promoted_share(gain: float) -> float:
    """Return share of seeds that promote a student whose skill is by `gain` logits above the base's."""
    rng = np.random.default_rng(5)
    num_promoted = 0
    for _ in range(NUM_SEEDS):
        ease = rng.normal(0.5, 1.5, NUM_PROMPTS)
        student, base = (
            (rng.random(NUM_PROMPTS) < 1 / (1 + np.exp(-ease - skill))).astype(float) for skill in (0.0, -gain)
        )
        p_higher, p_lower = mcnemar(student - base)
        means = float(student.mean()), float(base.mean())
        difference = Difference(
            NUM_PROMPTS, *means, means[0] - means[1], float("nan"), float("nan"), p_higher, p_lower, "mcnemar"
        )
        line = MetricComparison("on_policy", "accuracy", None, difference)
        decision = decide([line], ["on_policy"], "base", PromotionConfig(enabled=True, level=LEVEL))
        num_promoted += decision.promoted is not None
    return num_promoted / NUM_SEEDS


def test_a_training_that_did_nothing_is_promoted_at_no_more_than_the_nominal_rate() -> None:
    assert promoted_share(0.0) < MOST


def test_a_student_that_became_better_is_promoted() -> None:
    assert promoted_share(1.2) > 0.9
