import math
from collections.abc import Callable

import pytest

from stillhouse.config import TrainerConfig
from stillhouse.training.loop.optimisation.schedule import learning_rate

PEAK, LEAST, WARMUP, STEPS = 2.0, 0.5, 4, 24


def rates(schedule: str, num_steps: int = STEPS, **changes: object) -> list[float]:
    settings = {"learning_rate": PEAK, "schedule": schedule, "warmup_steps": WARMUP, "min_learning_rate": LEAST}
    config = TrainerConfig.model_validate(settings | changes)
    return [learning_rate(config, step, num_steps) for step in range(num_steps)]


@pytest.mark.parametrize(
    ("schedule", "after_warm_up"),
    [
        ("constant", lambda step: PEAK),
        ("linear", lambda step: PEAK - (PEAK - LEAST) * (step - 4) / 20),
        ("cosine", lambda step: LEAST + (PEAK - LEAST) * (1 + math.cos(math.pi * (step - 4) / 20)) / 2),
        ("wsd", lambda step: PEAK if step < 18 else LEAST + (PEAK - LEAST) * (24 - step) / 6),
    ],
)
def test_every_step_has_the_rate_of_the_formula(schedule: str, after_warm_up: Callable[[int], float]):
    expected = [0.5, 1.0, 1.5, 2.0, *map(after_warm_up, range(WARMUP, STEPS))]
    assert rates(schedule, decay_share=0.25) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("schedule", "middle"), [("linear", 0.5), ("cosine", 0.5), ("wsd", 1.0)], ids=lambda value: str(value)
)
def test_without_warm_up_and_floor_a_curve_goes_from_the_peak_towards_zero(schedule: str, middle: float):
    curve = rates(schedule, num_steps=10, learning_rate=1.0, warmup_steps=0, min_learning_rate=0.0)
    assert curve[0] == 1.0
    assert curve[5] == pytest.approx(middle)
    assert curve == sorted(curve, reverse=True)
    assert 0.0 < curve[-1] <= 0.5


def test_wsd_falls_from_the_end_of_warm_up_where_its_share_would_begin_before():
    assert rates("wsd", num_steps=8, decay_share=1.0, min_learning_rate=0.0)[3:] == pytest.approx([2, 2, 1.5, 1, 0.5])


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine", "wsd"])
def test_warm_up_longer_than_the_training_only_rises(schedule: str):
    assert rates(schedule, num_steps=3, warmup_steps=20) == pytest.approx([0.1, 0.2, 0.3])
