"""Renders the report of a run. The template escapes all text."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from stillhouse.report.comparison import overall_lines, tag_lines
from stillhouse.report.data import ReportData, StageSummary
from stillhouse.report.environment import CONVERSATION_CSS, REPORT_CSS, page_environment, style_sheet
from stillhouse.report.plots import (
    accuracy_plot,
    funnel_plot,
    on_policy_plot,
    series,
    sft_plot,
    stage_label,
    teacher_kl_plot,
)
from stillhouse.store.atomic import write_atomic
from stillhouse.types import JsonObject

FILE_NAME = "report.html"
_FOLDER = Path(__file__).parent
_EVALUATION_FACTS = (
    *("name", "num_trajectories", "accuracy", "accuracy_low", "accuracy_high", "teacher_kl"),
    *("mean_completion_tokens", "mean_turns", "truncated_share", "valid_tool_call_share", "failed_share"),
)
_DATASET_FACTS = ("kept", "dropped", "right", "wrong", "unverified", "train", "validation", "supervised_tokens")


def write_report(folder: Path, report: ReportData) -> Path:
    """Writes `report.html` into `folder` atomically and returns its path.

    Raises:
        StoreError: it cannot be written.
    """
    path = folder / FILE_NAME
    write_atomic(path, render(report).encode("utf-8"))
    return path


def render(report: ReportData) -> str:
    """HTML of the page; equal data gives equal bytes."""
    environment = page_environment(_FOLDER)
    environment.filters["label"] = stage_label
    return environment.get_template("report.html.j2").render(
        title=report.title,
        style=style_sheet(REPORT_CSS, CONVERSATION_CSS),
        report=report,
        links=_links(report),
        created=report.created_at.strftime("%d %B %Y, %H:%M %Z").strip() if report.created_at else None,
        evaluations=[{key: facts.get(key) for key in _EVALUATION_FACTS} for facts in report.evaluations],
        tags=_tags(report.evaluations),
        compared=overall_lines(report.comparison),
        compared_tags=tag_lines(report.comparison),
        totals=_totals(report.stages),
        dataset_facts=[(name, report.dataset[name]) for name in _DATASET_FACTS if report.dataset.get(name) is not None],
        drop_reasons=sorted((report.dataset.get("drop_reasons") or {}).items(), key=lambda item: (-item[1], item[0])),
        last_metrics={method: last for method, rows in report.training.items() if (last := _last_values(rows))},
        config=yaml.safe_dump(report.config, sort_keys=False, allow_unicode=True) if report.config else "",
        plots={name: svg for name, svg in _plots(report) if svg is not None},
    )


def _links(report: ReportData) -> list[tuple[str, str]]:
    """Text and address of each link; only web addresses, since escaping does not disarm `javascript:`."""
    links = [("MLflow run", report.mlflow_url), ("Prefect run", report.prefect_url)]
    return [(text, url) for text, url in links if url is not None and url.startswith(("http://", "https://"))]


def _plots(report: ReportData) -> Iterator[tuple[str, str | None]]:
    yield "accuracy", accuracy_plot(report.evaluations)
    yield "teacher_kl", teacher_kl_plot(report.evaluations)
    yield "sft", sft_plot(report.training.get("sft", ()))
    yield "on_policy", on_policy_plot(report.training.get("on_policy", ()))
    yield "funnel", funnel_plot(report.dataset.get("funnel") or ())


def _tags(evaluations: Sequence[JsonObject]) -> list[tuple[str, list[float | None]]]:
    """Accuracy with a row for each tag and a column for each model; empty for fewer than two tags."""
    by_model: list[dict[str, Any]] = [facts.get("accuracy_by_tag") or {} for facts in evaluations]
    names = sorted({tag for tags in by_model for tag in tags})
    return [(name, [tags.get(name) for tags in by_model]) for name in names] if len(names) > 1 else []


def _totals(stages: Sequence[StageSummary]) -> JsonObject:
    """Time and usage of this run; tokens of cached stages were paid for by an earlier one."""
    totals: JsonObject = {"seconds": sum(stage.seconds for stage in stages)}
    for name in ("prompt_tokens", "completion_tokens", "cost_usd"):
        known = [value for stage in stages if not stage.cached and (value := getattr(stage, name)) is not None]
        totals[name] = sum(known) if known else None
    return totals


def _last_values(rows: Sequence[JsonObject]) -> list[tuple[str, int, float]]:
    """Last finite value of each metric with its step, sorted by name."""
    numbers = {key for row in rows for key, value in row.items() if type(value) in (int, float)}
    curves = ((name, series(rows, name)) for name in sorted(numbers - {"step"}))
    return [(name, points[-1].step, points[-1].value) for name, points in curves if points]
