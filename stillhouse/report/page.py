"""Renders the report of a run. The template escapes all text."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from stillhouse.report.comparison import overall_lines, tag_lines
from stillhouse.report.conversation import view
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
        trajectories=[view(trajectory) for trajectory in report.trajectories],
        config=yaml.safe_dump(report.config, sort_keys=False, allow_unicode=True) if report.config else "",
        plots=_plots(report),
    )


def _links(report: ReportData) -> list[tuple[str, str]]:
    """Text and address of each link; only web addresses, since escaping does not disarm `javascript:`."""
    links = [("MLflow run", report.mlflow_url), ("Prefect run", report.prefect_url)]
    return [(text, url) for text, url in links if url is not None and url.startswith(("http://", "https://"))]


def _plots(report: ReportData) -> dict[str, str]:
    plots = {
        "accuracy": accuracy_plot(report.evaluations),
        "teacher_kl": teacher_kl_plot(report.evaluations),
        "sft": sft_plot(report.training.get("sft", ())),
        "on_policy": on_policy_plot(report.training.get("on_policy", ())),
        "funnel": funnel_plot(report.dataset.get("funnel") or ()),
    }
    return {name: svg for name, svg in plots.items() if svg is not None}


_EVALUATION_FACTS = (
    "name",
    "num_prompts",
    "num_trajectories",
    "accuracy",
    "accuracy_low",
    "accuracy_high",
    "teacher_kl",
    "mean_completion_tokens",
    "mean_turns",
    "truncated_share",
    "valid_tool_call_share",
    "failed_share",
)


def _tags(evaluations: Sequence[JsonObject]) -> list[tuple[str, list[float | None]]]:
    """Accuracy with a row for each tag and a column for each model; empty for fewer than two tags."""
    by_model: list[dict[str, Any]] = [facts.get("accuracy_by_tag") or {} for facts in evaluations]
    names = sorted({tag for tags in by_model for tag in tags})
    return [(name, [tags.get(name) for tags in by_model]) for name in names] if len(names) > 1 else []


def _totals(stages: Sequence[StageSummary]) -> JsonObject:
    """Time and usage of this run; tokens of cached stages were paid for by an earlier one."""
    computed = [stage for stage in stages if not stage.cached]

    def total(values: list[float | None]) -> float | None:
        known = [value for value in values if value is not None]
        return sum(known) if known else None

    return {
        "seconds": sum(stage.seconds for stage in stages),
        "prompt_tokens": total([stage.prompt_tokens for stage in computed]),
        "completion_tokens": total([stage.completion_tokens for stage in computed]),
        "cost_usd": total([stage.cost_usd for stage in computed]),
    }


def _last_values(rows: Sequence[JsonObject]) -> list[tuple[str, int, float]]:
    """Last finite value of each metric with its step, sorted by name."""
    names = sorted({key for row in rows for key, value in row.items() if _is_metric(key, value)})
    curves = ((name, series(rows, name)) for name in names)
    return [(name, points[-1].step, points[-1].value) for name, points in curves if points]


def _is_metric(key: str, value: object) -> bool:
    return key != "step" and isinstance(value, int | float) and not isinstance(value, bool)
