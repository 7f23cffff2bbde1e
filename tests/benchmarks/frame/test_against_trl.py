import pytest

from benchmarks.frame.against_trl import LossReport, SpeedReport, Turn
from benchmarks.frame.training import Mark, Speed


def turn(tokens_per_s: float, peak_bytes: int = 1) -> Turn:
    split = {"sample": 1.0, "score": 0.25, "train": 0.5, "sync": 0.0}
    return Turn(Speed(tokens_per_s, tokens_per_s, 2.0, peak_bytes), split, {"sample": 0.5, "score": 0.2, "train": 0.4})


def test_the_first_step_is_no_part_of_the_speed() -> None:
    marks = [Mark(100.0, 50.0, 300, 1), Mark(102.0, 53.0, 800, 2), Mark(104.0, 56.0, 1300, 3)]
    speed = Speed.of(marks)
    assert speed == Speed(tokens_per_s=250.0, tokens_per_cpu_s=1000 / 6, s_per_step=2.0, peak_bytes=3)


@pytest.mark.parametrize(
    ("difference", "same_data", "holds"), [(9e-4, True, True), (2e-3, True, False), (0, False, False)]
)
def test_losses_hold_on_the_same_data_to_a_thousandth(difference: float, same_data: bool, holds: bool) -> None:
    report = LossReport.of("losses", [6.0, 5.0], [6.0, 5.0 + difference], same_data=same_data)
    assert report.holds is holds
    assert ("DOES NOT HOLD" in report.line()) is not holds


@pytest.mark.parametrize(("ours", "holds"), [((30.0, 90.0, 60.0), True), ((29.0, 90.0, 58.0), False)])
def test_speed_holds_where_the_median_round_reaches_the_ratio(ours: tuple[float, ...], holds: bool) -> None:
    trl = [turn(rate, peak_bytes=40) for rate in (10.0, 20.0, 20.0)]
    report = SpeedReport("small", "float32", [turn(rate, peak_bytes=10) for rate in ours], trl, least_ratio=3.0)
    assert report.holds is holds
    assert report.figures()["holds"] is holds
    ratios = report.figures()["ratios"]
    assert ratios["peak_bytes"]["median"] == 0.25
    assert (ratios["tokens_per_s"]["low"], ratios["tokens_per_s"]["high"]) == (ours[2] / 20, ours[1] / 20)
