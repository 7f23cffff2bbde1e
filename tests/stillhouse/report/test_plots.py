import re
from collections.abc import Callable
from typing import Any

import pytest

from stillhouse.report import ReportData
from stillhouse.report.plots import (
    Point,
    accuracy_plot,
    funnel_plot,
    on_policy_plot,
    series,
    sft_plot,
    teacher_kl_plot,
)
from stillhouse.report.svg import WIDTH_IN

Words = Callable[[str | None], list[str]]


def test_pictures_say_the_figures_they_show(full: ReportData, words: Words) -> None:
    assert {"Base student", "73.1 %", "98.1 %"} <= set(words(accuracy_plot(full.evaluations)))
    assert {"1.847", "0.214", "0.061"} <= set(words(teacher_kl_plot(full.evaluations)))
    assert {"640", "604", "94 %"} <= set(words(funnel_plot(full.dataset["funnel"])))
    assert "validation 0.203" in words(sft_plot(full.training["sft"]))
    assert "teacher_kl, nats per token" in words(on_policy_plot(full.training["on_policy"]))


def test_a_model_has_one_colour_in_all_pictures_and_none_is_fixed(full: ReportData) -> None:
    accuracy, kl = accuracy_plot(full.evaluations) or "", teacher_kl_plot(full.evaluations) or ""
    for name in ("base", "sft", "on_policy"):
        assert f"var(--stage-{name})" in accuracy
        assert f"var(--stage-{name})" in kl
    assert re.findall(r"#[0-9a-f]{6}", accuracy + kl) == []
    assert "var(--stage-sft)" in (sft_plot(full.training["sft"]) or "")
    assert "var(--stage-on_policy)" in (on_policy_plot(full.training["on_policy"]) or "")


@pytest.mark.parametrize(
    "picture",
    [
        accuracy_plot([]),
        accuracy_plot([{"name": "sft", "accuracy": None}]),
        teacher_kl_plot([{"name": "teacher", "teacher_kl": None}]),
        funnel_plot([]),
        sft_plot([{"step": 1, "sft/grad_norm": 1.0}]),
        on_policy_plot([]),
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


def test_a_series_passes_over_rows_without_the_metric_and_values_that_are_not_finite() -> None:
    values = [{"a": 1.0}, {}, {"a": None}, {"a": float("nan")}, {"a": 2}]
    rows = [{"step": step, **value} for step, value in enumerate(values, start=1)]
    assert series(rows, "a") == [Point(1, 1.0), Point(5, 2.0)]


def test_sft_shows_cross_entropy_whatever_the_loss_and_the_accuracy_of_sampled_answers(words: Words) -> None:
    rows = [
        {"step": 0, "sft/validation_nll": 2.5, "sft/validation_loss": 0.25, "sft/generation_accuracy": 0.125},
        {"step": 9, "sft/nll": 1.5, "sft/loss": 0.5},
    ]
    shown = words(sft_plot(rows))
    for text in ("training 1.500", "validation 2.500", "Accuracy of sampled answers to validation prompts", "0.12"):
        assert text in shown


@pytest.mark.parametrize("names", [["short"], ["short", "long"]])
def test_each_of_several_teachers_has_a_curve(names: list[str], words: Words) -> None:
    kls = {f"on_policy/teacher_kl/{name}": 0.125 * (place + 1) for place, name in enumerate(names)}
    shown = words(on_policy_plot([{"step": step, "on_policy/teacher_kl": 0.5, **kls} for step in (1, 2)]))
    assert ("teacher_kl to long" in shown) == ("teacher_kl to short" in shown) == (len(names) > 1)
    assert ("0.125" in shown) == ("0.250" in shown) == (len(names) > 1)


@pytest.mark.parametrize(
    "rows",
    [
        [{"step": 1, "sft/nll": 0.5}],
        [{"step": 9, "sft/validation_nll": 0.5}],
        [{"step": step, "sft/nll": 0.0} for step in range(100)],
    ],
)
def test_short_and_flat_curves_are_drawn(rows: list[dict[str, Any]], words: Words) -> None:
    assert "var(--stage-sft)" in (sft_plot(rows) or "") or "validation 0.500" in words(sft_plot(rows))
