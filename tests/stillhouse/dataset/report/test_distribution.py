import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stillhouse.dataset.report.figures import Distribution

NUMBERS = st.floats(min_value=-1e12, max_value=1e12, allow_nan=False, allow_subnormal=False)


def distribution(*batches: list[float]) -> Distribution:
    made = Distribution()
    for batch in batches:
        made.add(np.array(batch, dtype=np.float64))
    return made


@given(st.lists(st.lists(NUMBERS, max_size=20), max_size=5), st.sampled_from([0.0, 0.05, 0.5, 0.95, 1.0]))
def test_batches_make_no_difference(batches: list[list[float]], share: float) -> None:
    joined = sorted(value for batch in batches for value in batch)
    made = distribution(*batches)
    assert made.num_values == len(joined)
    assert made.quantile(share) == (np.quantile(joined, share, method="inverted_cdf") if joined else None)
    assert made.mean == (pytest.approx(np.mean(joined)) if joined else None)


def test_only_finite_values_count() -> None:
    made = distribution([1234.0, 1235.0, float("nan"), -float("inf")])
    assert (made.num_values, made.mean) == (2, 1234.5)
