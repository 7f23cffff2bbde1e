import pytest

from benchmarks.on_policy.bench import LossReport, SpeedReport, Turn
from benchmarks.on_policy.sides.job import Found
from benchmarks.sft.sides.job import Mark
from benchmarks.sft.trial import Speed


def turn(tokens_per_s: float, peak_bytes: int = 1) -> Turn:
    split = {"sample": 1.0, "score": 0.25, "train": 0.5, "sync": 0.0}
    return Turn(Speed(tokens_per_s, tokens_per_s, 2.0, peak_bytes), split, {"sample": 0.5, "score": 0.2, "train": 0.4})


def test_what_is_neither_sampling_nor_scoring_is_training_and_the_first_step_does_not_count() -> None:
    spent = [{"sample": 9.0, "score": 9.0, "sync": 9.0}, {"sample": 1.0, "score": 0.25, "sync": 0.5}]
    found = Found(marks=[Mark(10.0, 0.0, 5, 1), Mark(14.0, 0.0, 9, 1)], seconds=spent)
    assert found.splits() == [{"sample": 1.0, "score": 0.25, "sync": 0.5, "train": 2.25}]


@pytest.mark.parametrize(("difference", "holds"), [(9e-4, True), (2e-3, False)])
def test_losses_hold_to_a_thousandth(difference: float, holds: bool) -> None:
    report = LossReport("losses", 20, 6.0, 5.0, difference)
    assert report.holds is holds
    assert ("DOES NOT HOLD" in report.line()) is not holds


@pytest.mark.parametrize(("ours", "holds"), [((30.0, 90.0, 60.0), True), ((29.0, 90.0, 58.0), False)])
def test_speed_holds_where_the_median_round_takes_a_third_of_the_time(ours: tuple[float, ...], holds: bool) -> None:
    trl = [turn(rate, peak_bytes=40) for rate in (10.0, 20.0, 20.0)]
    report = SpeedReport("small", "float32", [turn(rate, peak_bytes=10) for rate in ours], trl)
    assert report.holds is holds
    assert report.figures()["holds"] is holds
    assert report.figures()["ratios"]["peak_bytes"]["median"] == 0.25


def test_the_split_is_printed_beside_its_floor() -> None:
    _, ours, trl = SpeedReport("small", "float32", [turn(30.0)], [turn(10.0)]).lines()
    assert ours.split("ours ")[1] == trl.split("TRL  ")[1]
    assert "sample 1.00 s (floor 0.50), score 0.25 s (floor 0.20), train 0.50 s (floor 0.40), sync 0.00 s" in ours
