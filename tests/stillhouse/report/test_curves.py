from collections.abc import Callable
from typing import Any

import pytest

from stillhouse.report import ReportData
from stillhouse.report.curves import Point, on_policy_plot, series, sft_plot

Words = Callable[[str | None], list[str]]


def test_a_series_passes_over_rows_without_the_metric_and_values_that_are_not_finite() -> None:
    rows = [
        {"step": 1, "a": 1.0},
        {"step": 2},
        {"step": 3, "a": None},
        {"step": 4, "a": float("nan")},
        {"step": 5, "a": 2},
    ]
    assert series(rows, "a") == [Point(1, 1.0), Point(5, 2.0)]


def test_curves_say_the_figures_they_show(full: ReportData, words: Words) -> None:
    assert "validation 0.203" in words(sft_plot(full.training["sft"]))
    assert "teacher_kl, nats per token" in words(on_policy_plot(full.training["on_policy"]))


def test_a_curve_has_the_colour_of_its_stage(full: ReportData) -> None:
    assert "var(--stage-sft)" in (sft_plot(full.training["sft"]) or "")
    assert "var(--stage-on_policy)" in (on_policy_plot(full.training["on_policy"]) or "")


def test_a_training_without_the_metrics_has_no_picture() -> None:
    assert sft_plot([{"step": 1, "sft/grad_norm": 1.0}]) is None
    assert on_policy_plot([]) is None


def test_sft_shows_cross_entropy_whatever_the_loss_and_the_accuracy_of_sampled_answers(words: Words) -> None:
    rows = [
        {"step": 0, "sft/validation_nll": 2.5, "sft/validation_loss": 0.25, "sft/generation_accuracy": 0.125},
        {"step": 9, "sft/nll": 1.5, "sft/loss": 0.5},
    ]
    shown = words(sft_plot(rows))
    for told in ("training 1.500", "validation 2.500", "Accuracy of sampled answers to validation prompts", "0.12"):
        assert told in shown


@pytest.mark.parametrize(
    "rows",
    [
        [{"step": 1, "sft/loss": 0.5}],
        [{"step": 9, "sft/validation_loss": 0.5}],
        [{"step": step, "sft/loss": 0.0} for step in range(100)],
    ],
)
def test_short_and_flat_curves_are_drawn(rows: list[dict[str, Any]], words: Words) -> None:
    assert "var(--stage-sft)" in (sft_plot(rows) or "") or "validation 0.500" in words(sft_plot(rows))
