"""How often the rule of promotion errs: simulated models on prompts of their own difficulty, and the real decision."""

from collections.abc import Mapping

import numpy as np

from stillhouse.config import PlaceboConfig, PromotionConfig
from stillhouse.evaluation.comparison import MetricComparison
from stillhouse.evaluation.paired import Difference, mcnemar
from stillhouse.evaluation.promotion import decide

NUM_PROMPTS, NUM_SEEDS, LEVEL = 200, 1000, 0.05
# Two standard deviations of a share of 5 % among so many seeds.
MOST = LEVEL + 2 * (LEVEL * (1 - LEVEL) / NUM_SEEDS) ** 0.5
RULE = PromotionConfig(enabled=True, level=LEVEL, placebo=PlaceboConfig(enabled=True, level=LEVEL))
SHUFFLED, CONSTANT = "placebo_shuffled", "placebo_constant"


def line(student: np.ndarray, other: np.ndarray) -> MetricComparison:
    """The student against another model; without the interval, which the rule reads for margins alone."""
    p_higher, p_lower = mcnemar(student - other)
    means = float(student.mean()), float(other.mean())
    difference = Difference(
        NUM_PROMPTS, *means, means[0] - means[1], float("nan"), float("nan"), p_higher, p_lower, "mcnemar"
    )
    return MetricComparison("on_policy", "accuracy", None, difference)


def promoted_share(skill: Mapping[str, float], *, with_placebos: bool = True) -> float:
    """Share of seeds that promote a student of skill 0; the others' skills are in logits, relative to it."""
    rng = np.random.default_rng(5)
    num_promoted = 0
    for _ in range(NUM_SEEDS):
        ease = rng.normal(0.5, 1.5, NUM_PROMPTS)

        def answers(name: str, ease: np.ndarray = ease) -> np.ndarray:
            return (rng.random(NUM_PROMPTS) < 1 / (1 + np.exp(-ease - skill.get(name, 0.0)))).astype(float)

        student, base = answers("on_policy"), answers("base")
        against = {name: [line(student, answers(name))] for name in (SHUFFLED, CONSTANT)} if with_placebos else {}
        decision = decide([line(student, base)], ["on_policy"], "base", RULE, {"on_policy": against})
        num_promoted += decision.promoted is not None
    return num_promoted / NUM_SEEDS


def test_a_training_that_gained_no_more_than_its_placebos_is_promoted_at_no_more_than_the_nominal_rate() -> None:
    # All sharpened alike: from 40 % to 60 %. Without placebos, every one of these students is promoted.
    sharpened = {"base": -1.2}
    assert promoted_share(sharpened, with_placebos=False) > 0.9
    assert promoted_share(sharpened) < MOST


def test_one_placebo_as_good_as_the_student_is_enough_to_hold_the_nominal_rate() -> None:
    # The case in which an intersection-union test errs most: the other models are far behind.
    for equal in (SHUFFLED, CONSTANT):
        behind = {"base": -5.0, SHUFFLED: -5.0, CONSTANT: -5.0} | {equal: 0.0}
        assert 0.01 < promoted_share(behind) < MOST


def test_a_training_that_did_nothing_is_hardly_ever_promoted() -> None:
    assert promoted_share({}) < 0.01


def test_a_student_that_its_teacher_made_better_is_promoted() -> None:
    assert promoted_share({"base": -1.2, SHUFFLED: -1.2, CONSTANT: -1.2}) > 0.9
