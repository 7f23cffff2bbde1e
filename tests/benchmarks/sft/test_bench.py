import pytest

from benchmarks.sft.bench import LossReport, SpeedReport
from benchmarks.sft.sides.job import Mark, fingerprint
from benchmarks.sft.trial import Speed


def test_the_first_step_is_no_part_of_the_speed() -> None:
    marks = [Mark(100.0, 50.0, 300, 1), Mark(102.0, 53.0, 800, 2), Mark(104.0, 56.0, 1300, 3)]
    speed = Speed.of(marks)
    assert speed == Speed(tokens_per_s=250.0, tokens_per_cpu_s=1000 / 6, s_per_step=2.0, peak_bytes=3)


@pytest.mark.parametrize(
    ("difference", "same_rows", "holds"), [(9e-4, True, True), (2e-3, True, False), (0, False, False)]
)
def test_losses_hold_on_the_same_rows_to_a_thousandth(difference: float, same_rows: bool, holds: bool) -> None:
    report = LossReport(50, 6.0, 5.0, difference, same_rows)
    assert report.holds is holds
    assert ("DOES NOT HOLD" in report.line()) is not holds


def test_ratios_are_those_of_rounds() -> None:
    ours, trl = ([Speed(rate, rate, 1.0, peak) for rate in rates] for rates, peak in (((30, 80), 10), ((10, 20), 40)))
    report = SpeedReport("small", "float32", ours, trl)
    assert (report.ratio("tokens_per_s").low, report.ratio("tokens_per_s").high) == (3.0, 4.0)
    assert report.figures()["ratios"]["peak_bytes"]["median"] == 0.25


def test_a_fingerprint_tells_ids_and_masks_apart_and_ends_with_the_last_target() -> None:
    ids, mask = [5, 6, 7, 8], [False, True, True, False]
    same = fingerprint([(ids, mask)])
    assert same == fingerprint([(ids[:3], mask[:3])])
    assert len({same, fingerprint([([5, 6, 9], mask[:3])]), fingerprint([(ids, [False, False, True, False])])}) == 3
