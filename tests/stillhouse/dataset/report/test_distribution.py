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


@given(st.lists(NUMBERS, min_size=1, max_size=50), st.sampled_from([0.0, 0.05, 0.5, 0.95, 1.0]))
def test_a_quantile_is_off_by_half_a_percent_at_most(values: list[float], share: float) -> None:
    exact = np.quantile(values, share, method="inverted_cdf")
    assert distribution(values).quantile(share) == pytest.approx(exact, rel=0.0051)


@given(st.lists(st.lists(NUMBERS, max_size=20), max_size=5))
def test_batches_and_order_make_no_difference(batches: list[list[float]]) -> None:
    joined = sorted(value for batch in batches for value in batch)
    one, other = distribution(*batches), distribution(joined)
    assert [part.tolist() for part in one.values()] == [part.tolist() for part in other.values()]
    assert one.num_values == len(joined)


@pytest.mark.parametrize("value", [0.2, 0.7, 0.123, 1e-7, 0.00105, 12300.0, 4.56e9, -0.3])
def test_a_number_of_three_digits_stays_as_it_is(value: float) -> None:
    assert distribution([value]).quantile(0.5) == value


def test_a_value_can_count_several_times() -> None:
    made = Distribution()
    made.add(np.array([1.0, 2.0]), np.array([3, 1]))
    assert (made.num_values, made.mean, made.quantile(0.75), made.quantile(1.0)) == (4, 1.25, 1.0, 2.0)


def test_only_finite_values_count_and_their_mean_is_not_rounded() -> None:
    made = distribution([1234.0, 1235.0, float("nan"), -float("inf")])
    assert (made.num_values, made.mean) == (2, 1234.5)
    assert (distribution().mean, distribution([]).quantile(0.5), distribution().num_values) == (None, None, 0)


def test_a_million_different_values_take_few_bins() -> None:
    values = np.random.default_rng(0).lognormal(6, 1, 1_000_000)
    made = Distribution()
    made.add(values)
    assert len(made.values()[0]) < 10_000
    assert made.num_values == 1_000_000
