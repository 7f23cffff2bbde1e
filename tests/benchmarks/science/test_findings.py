import math
from pathlib import Path

import pytest

from benchmarks.science.findings import Claim, Curve, CurvePoint, Experiment, SeedResult, times


def curve(*accuracies: float) -> Curve:
    return Curve([CurvePoint(step, accuracy, 10.0 * step, 1e6 * step) for step, accuracy in enumerate(accuracies)])


def experiment(claim: Claim) -> Experiment:
    return Experiment(name="e0", title="", setup="", claims=(claim,), run=lambda lab, seed: SeedResult(seed, {}))


def test_a_target_is_reached_where_it_is_first_measured() -> None:
    reached = curve(0.1, 0.5, 0.4, 0.8).reached(0.5)
    assert (reached.steps, reached.tokens, reached.flops) == (1, 10.0, 1e6)
    assert math.isinf(curve(0.1, 0.5).reached(0.9).steps)


def test_what_never_arrived_has_gained_nothing() -> None:
    assert times(100.0, 20.0) == 5.0
    assert times(math.inf, 20.0) == math.inf
    assert times(math.inf, math.inf) == times(100.0, math.inf) == 0.0


@pytest.mark.parametrize(
    ("values", "is_upper", "word"),
    [
        ((5.0, 6.0, 7.0), False, "holds"),
        ((4.0, 6.0, 7.0), False, "holds by the median"),
        ((4.0, 4.5, 7.0), False, "does not hold by the median"),
        ((1.0, 2.0, 3.0), False, "does not hold"),
        ((1.0, 2.0, 3.0), True, "holds"),
        ((1.0, 2.0, 6.0), True, "holds by the median"),
    ],
)
def test_a_verdict_goes_by_all_seeds_or_else_by_the_median(
    values: tuple[float, ...], is_upper: bool, word: str
) -> None:
    claim = Claim("", "ratio", 5.0, is_upper=is_upper)
    results = [SeedResult(seed, {}, {"ratio": value}) for seed, value in enumerate(values)]
    (verdict,) = experiment(claim).verdicts(results)
    assert verdict.word == word
    assert (verdict.measured.low, verdict.measured.high) == (min(values), max(values))


def test_a_result_is_read_as_it_was_written_with_what_was_never_reached(tmp_path: Path) -> None:
    result = SeedResult(1, {"one": curve(0.1, 0.9)}, {"ratio": math.inf}, target=0.8)
    result.write(tmp_path / "result.json")
    assert SeedResult.read(tmp_path / "result.json") == result
