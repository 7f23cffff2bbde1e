"""Renders the report of a run. The template escapes all text."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, Final

import yaml

from stillhouse.config.suites import SUITE_PREFIX
from stillhouse.report.conversation import SampleTrajectory
from stillhouse.report.data import USAGE, ReportData, StageSummary
from stillhouse.report.environment import CONVERSATION_CSS, REPORT_CSS, page_environment, style_sheet
from stillhouse.report.format import decimal, percent, spend
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

_LABELS: Final = {
    "accuracy": "Accuracy",
    "reward": "Reward",
    "mean_completion_tokens": "Tokens",
    "truncated_share": "Truncated",
    "valid_tool_call_share": "Valid calls",
}
_SHARES: Final = frozenset({"accuracy", "truncated_share", "valid_tool_call_share"})


def write_report(folder: Path, report: ReportData) -> Path:
    """Write `report.html` into `folder` atomically and return its path; raise StoreError if it cannot be written."""
    path = folder / FILE_NAME
    write_atomic(path, render(report).encode("utf-8"))
    return path


def render(report: ReportData) -> str:
    """Return the HTML of the page; equal data gives equal bytes."""
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
        groups=_by_prompt(report.trajectories),
        config=yaml.safe_dump(report.config, sort_keys=False, allow_unicode=True) if report.config else "",
        plots={name: svg for name, svg in _plots(report) if svg is not None},
    )


def _by_prompt(trajectories: Sequence[SampleTrajectory]) -> list[list[SampleTrajectory]]:
    """Return trajectories that answer one prompt together, in the order of the first of each."""
    groups: dict[str, list[SampleTrajectory]] = {}
    for number, trajectory in enumerate(trajectories):
        groups.setdefault(trajectory.prompt_id or f"alone {number}", []).append(trajectory)
    return list(groups.values())


def _links(report: ReportData) -> list[tuple[str, str]]:
    """Return the text and address of each link; only web addresses, since escaping does not disarm `javascript:`."""
    links = [("MLflow run", report.mlflow_url), ("Prefect run", report.prefect_url)]
    return [(text, url) for text, url in links if url is not None and url.startswith(("http://", "https://"))]


def _plots(report: ReportData) -> Iterator[tuple[str, str | None]]:
    yield "accuracy", accuracy_plot(report.evaluations)
    yield "teacher_kl", teacher_kl_plot(report.evaluations)
    yield "sft", sft_plot(report.training.get("sft", ()))
    yield "on_policy", on_policy_plot(report.training.get("on_policy", ()))
    yield "funnel", funnel_plot(report.dataset.get("funnel") or ())


def _tags(evaluations: Sequence[JsonObject]) -> list[tuple[str, list[float | None]]]:
    """Return accuracy with a row for each tag and a column for each model; empty for fewer than two tags."""
    by_model: list[dict[str, Any]] = [facts.get("accuracy_by_tag") or {} for facts in evaluations]
    names = sorted({tag for tags in by_model for tag in tags})
    return [(name, [tags.get(name) for tags in by_model]) for name in names] if len(names) > 1 else []


def _totals(stages: Sequence[StageSummary]) -> JsonObject:
    """Return time and usage of this run; tokens of cached stages were paid for by an earlier one."""
    totals: JsonObject = {"seconds": sum(stage.seconds for stage in stages)}
    computed = [stage for stage in stages if not stage.cached]
    for name in USAGE:
        known = [value for stage in computed if (value := stage.usage[name]) is not None]
        totals[name] = sum(known) if known else None
    is_local = any(stage.is_local and stage.usage["completion_tokens"] is not None for stage in computed)
    paid = spend(totals["cost_usd"], totals["estimated_usd"], totals["possible_usd"])
    totals["cost"] = "local" if is_local and totals["cost_usd"] is None else paid
    return totals


def _last_values(rows: Sequence[JsonObject]) -> list[tuple[str, int, float]]:
    """Return the last finite value of each metric with its step, sorted by name."""
    numbers = {key for row in rows for key, value in row.items() if type(value) in (int, float)}
    curves = ((name, series(rows, name)) for name in sorted(numbers - {"step"}))
    return [(name, points[-1].step, points[-1].value) for name, points in curves if points]


def overall_lines(rows: Sequence[JsonObject]) -> list[JsonObject]:
    """Return lines over all prompts by metric, without metrics on which the models are equal for every prompt."""
    overall = [row for row in rows if row["tag"] is None]
    differing = {row["metric"] for row in overall if (row["low"], row["high"]) != (0.0, 0.0)}
    suites = {row["metric"]: row["metric"] for row in overall if row["metric"].startswith(SUITE_PREFIX)}
    return _lines(
        (label, row)
        for metric, label in {**_LABELS, **suites}.items()
        for row in overall
        if row["metric"] == metric and metric in {*differing, *suites, "accuracy"}
    )


def tag_lines(rows: Sequence[JsonObject]) -> list[JsonObject]:
    """Return lines of accuracy, or of rewards if nothing is verified, by tag; empty for fewer than two tags."""
    tagged = sorted((row for row in rows if row["tag"] is not None), key=lambda row: row["tag"])
    metric = "accuracy" if any(row["metric"] == "accuracy" for row in tagged) else "reward"
    named = [(row["tag"], row) for row in tagged if row["metric"] == metric]
    return _lines(named) if len({tag for tag, _ in named}) > 1 else []


def _lines(named: Iterable[tuple[str, JsonObject]]) -> list[JsonObject]:
    """Return the lines; of those of one group only the first names it."""
    return [
        {"group": group if place == 0 else "", **_line(row)}
        for group, rows in groupby(named, key=itemgetter(0))
        for place, (_, row) in enumerate(rows)
    ]


def _line(row: JsonObject) -> JsonObject:
    """Return one model's metric and the reference's as text.

    `sign` is `right` or `wrong` if the interval shows that the model is better or worse, else empty.
    """
    is_share = row["metric"] in _SHARES or row["metric"].startswith(SUITE_PREFIX)
    places = 2 if row["metric"] == "reward" else 1
    scale = 100.0 if is_share else 1.0
    value, reference = (
        percent(row[name]) if is_share else decimal(row[name], places) for name in ("value", "reference")
    )

    def signed(name: str) -> str:
        rounded = round(scale * row[name], places)
        # A minus sign as wide as the plus; zero has no sign.
        return f"{rounded:+.{places}f}".replace("-", "\u2212") if rounded else f"{0.0:.{places}f}"

    sign = "right" if row["gain"] > 0.0 else "wrong"
    return {
        **{name: row[name] for name in ("model", "num_prompts")},
        "value": value,
        "reference": reference,
        "difference": signed("difference"),
        "interval": f"{signed('low')} to {signed('high')}",
        "p": "< 0.001" if row["p"] < 0.001 else f"{row['p']:.3f}",
        "sign": "" if row["low"] <= 0.0 <= row["high"] else sign,
    }
