import re
from collections.abc import Callable

import pytest

from stillhouse.report import ReportData
from stillhouse.report.bars import accuracy_plot, funnel_plot, teacher_kl_plot
from stillhouse.report.svg import WIDTH_IN

Words = Callable[[str | None], list[str]]


def test_bars_say_the_figures_they_show(full: ReportData, words: Words) -> None:
    assert {"Base student", "73.1 %", "98.1 %"} <= set(words(accuracy_plot(full.evaluations)))
    assert {"1.847", "0.214", "0.061"} <= set(words(teacher_kl_plot(full.evaluations)))
    assert {"640", "604", "94 %"} <= set(words(funnel_plot(full.dataset["funnel"])))


def test_a_model_has_one_colour_in_all_pictures_and_none_is_fixed(full: ReportData) -> None:
    accuracy, kl = accuracy_plot(full.evaluations) or "", teacher_kl_plot(full.evaluations) or ""
    for name in ("base", "sft", "on_policy"):
        assert f"var(--stage-{name})" in accuracy
        assert f"var(--stage-{name})" in kl
    assert re.findall(r"#[0-9a-f]{6}", accuracy + kl) == []


@pytest.mark.parametrize(
    "picture",
    [
        accuracy_plot([]),
        accuracy_plot([{"name": "sft", "accuracy": None}]),
        teacher_kl_plot([{"name": "teacher", "teacher_kl": None}]),
        funnel_plot([]),
    ],
)
def test_nothing_to_show_is_no_picture(picture: str | None) -> None:
    assert picture is None


def test_extreme_evaluations_are_drawn(words: Words) -> None:
    rows = [
        {"name": "base", "accuracy": 0.0, "accuracy_low": 0.0, "accuracy_high": 0.02, "teacher_kl": 0.0},
        {"name": "sft", "accuracy": 1.0, "teacher_kl": -0.01},
    ]
    assert {"0.0 %", "100.0 %"} <= set(words(accuracy_plot(rows)))
    assert {"0.000", "-0.010"} <= set(words(teacher_kl_plot(rows)))


def test_a_funnel_that_lets_nothing_through_is_drawn(words: Words) -> None:
    assert words(funnel_plot([["rollouts", 0], ["kept", 0]])).count("0") == 2


def test_steps_of_a_funnel_that_drop_nothing_are_left_out_but_the_last_one(words: Words) -> None:
    steps = [["rollouts", 9], ["finished", 9], ["not wrong", 4], ["short enough", 4], ["kept", 4]]
    shown = words(funnel_plot(steps))
    assert [word for word in shown if word[0].isalpha()] == ["Rollouts", "Not wrong", "Kept"]


@pytest.mark.parametrize("count", [5, 99_999, 1_000_000, 123_456_789])
def test_the_counts_of_a_funnel_stand_beside_its_bars_and_within_the_picture(count: int) -> None:
    svg = funnel_plot([["rollouts", count], ["rendered by the student's template", 3], ["kept", 1]]) or ""
    number, share = (
        float(next(re.finditer(rf'x="([\d.]+)"[^>]*>{text}<', svg))[1]) for text in (f"{count:,}", "100 %")
    )
    bars = re.findall(r'<path d="([^"]*)" clip-path', svg)
    bars_end = max(float(x) for bar in bars for x in re.findall(r"[ML] ([\d.]+)", bar))
    assert bars_end + 6 * len(f"{count:,}") < number < share < 72 * WIDTH_IN
    assert bars_end > 100


def test_a_funnel_shows_tokens_as_bars_of_another_colour() -> None:
    steps = [["rollouts", 9], ["kept", 4]]
    assert "var(--stage-sft)" in (funnel_plot(steps, tokens=[800, 200]) or "")
    assert "var(--stage-sft)" not in (funnel_plot(steps) or "")
