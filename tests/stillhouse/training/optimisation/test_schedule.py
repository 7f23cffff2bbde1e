import pytest

from stillhouse.config import TrainerConfig
from stillhouse.training.optimisation.schedule import learning_rate


def rates(schedule: str, warmup: int = 0, steps: int = 10) -> list[float]:
    config = TrainerConfig(learning_rate=1.0, schedule=schedule, warmup_steps=warmup)
    return [learning_rate(config, step, steps) for step in range(steps)]


def test_constant_stays():
    assert rates("constant") == [1.0] * 10


def test_linear_falls_by_equal_parts_and_would_end_at_zero():
    assert rates("linear") == pytest.approx([1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1])


def test_cosine_is_half_way_down_in_the_middle():
    curve = rates("cosine")
    assert curve[0] == 1.0
    assert curve[5] == pytest.approx(0.5)
    assert curve == sorted(curve, reverse=True)


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine"])
def test_warm_up_rises_to_the_peak_by_equal_parts(schedule: str):
    assert rates(schedule, warmup=4)[:5] == pytest.approx([0.25, 0.5, 0.75, 1.0, 1.0])


def test_warm_up_longer_than_the_training_never_divides_by_zero():
    assert rates("linear", warmup=20, steps=3) == pytest.approx([0.05, 0.1, 0.15])
