import numpy as np

from stillhouse.training.trajectories import sampled_runs, unsampled_runs
from stillhouse.types import Sample


def test_runs_are_what_was_sampled_between_two_readings() -> None:
    one = Sample([1, 2, 3, 4, 5], [False, True, True, False, True], "p")
    assert sampled_runs(one) == [[2, 3], [5]]
    assert unsampled_runs(one) == [[1], [4]]
    assert sampled_runs(Sample([1], [False], "p")) == sampled_runs(Sample([], [], "p")) == []
    assert unsampled_runs(Sample([1], np.array([False]), "p")) == [[1]]  # type: ignore[arg-type]
