"""Artifacts on the flow run's page (MLflow link, dataset, summary), and links and commands that show more."""

import os
import shlex
import sys
from collections.abc import Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote
from uuid import UUID

from prefect.artifacts import create_link_artifact, create_markdown_artifact, create_table_artifact
from prefect.runtime import flow_run
from prefect.settings import PREFECT_UI_URL

from stillhouse.dataset.report.page import CARD_FILE, REPORT_FILE
from stillhouse.report.markdown import table
from stillhouse.types import Artifact
from tasks.run.context import Run
from tasks.run.summary import SUMMARY_COLUMNS
from tasks.server.temporary_server import has_lasting_server


def show_tracking(run: Run) -> None:
    if (page := run.record.pages.run) is not None:
        run.pages["MLflow run"] = page
        command = run.record.pages.ui_command
        shown = "" if command is None else f", while this runs: `{command}`"
        create_link_artifact(page, "MLflow run", key="mlflow-run", description=f"Parameters, metrics and files{shown}")


def show_dataset(dataset: Artifact, run: Run) -> None:
    """Put a dataset's card and funnel on the page and its report into MLflow, and keep links to them in the run."""
    folder = Path(dataset.uri)
    run.record.log_dataset("dataset", dataset.uri, dataset.fingerprint, "training", dataset.num_rows)
    for name in (CARD_FILE, REPORT_FILE):
        run.record.log_artifact(folder / name, "dataset")
    if (page := run.record.pages.file(f"dataset/{REPORT_FILE}")) is not None:
        run.pages["Report with rows to read"] = page
    # Without the front matter, which is for the hub.
    card = (folder / CARD_FILE).read_text(encoding="utf-8").split("---\n", 2)[2]
    artifact = create_markdown_artifact(card, key="dataset-card", description="What the dataset holds")
    run.pages["Card of the dataset"] = _address(artifact)
    steps = dataset.facts["funnel"]
    first = steps[0][1]
    funnel = [
        {"step": name, "rows left": rows, "share": f"{rows / first:.1%}" if first else ""} for name, rows in steps
    ]
    artifact = create_table_artifact(
        funnel, key="dataset-funnel", description="How many rows each step of the selection leaves"
    )
    run.pages["What each filter left"] = _address(artifact)


def show_result(run: Run, summary: Sequence[Sequence[str]], pages: Mapping[str, str]) -> None:
    """Put the closing table on the page, with `pages`: URLs and commands that show more, by purpose."""
    # A reason that a person gave may have several lines.
    rows = [[cell.replace("\n", " ") for cell in row] for row in summary]
    # This page needs no link to itself.
    links = {purpose: line for purpose, line in pages.items() if purpose != "Prefect"}
    if (report := run.record.pages.file("report/report.html")) is not None:
        links["report in MLflow"] = report
    if (run.context.store.url or "").startswith("s3://") and not os.environ.get("AWS_ENDPOINT_URL"):
        # AWS's console asks for a login; other storages have no page that is known.
        bucket, _, prefix = f"{run.context.store.url}/".removeprefix("s3://").partition("/")
        file = Path(pages["report"]).absolute().relative_to(run.context.store.root).as_posix()
        links["report on S3"] = f"https://console.aws.amazon.com/s3/object/{bucket}?prefix={quote(prefix + file)}"
    # A bare URL would run over the edge of the page.
    lines = "\n".join(
        f"- [{purpose}]({line})" if line.startswith("http") else f"- {purpose}: `{line}`"
        for purpose, line in links.items()
    )
    create_markdown_artifact(
        f"{table(SUMMARY_COLUMNS, rows)}\n{lines}\n", key="summary", description=f"Summary of {run.name}"
    )


def _address(artifact: UUID | Coroutine[Any, Any, UUID]) -> str:
    # Typed as a coroutine as well, for callers inside an event loop: flows are none.
    return f"{PREFECT_UI_URL.value()}/artifacts/artifact/{artifact}"


def links_of(run: Run) -> dict[str, str]:
    """Return URLs and shell commands that show more of a run, by purpose."""
    scripts = Path(sys.executable).parent
    store = shlex.quote(relative_path(run.context.store.root))
    pages = {"view": f"{relative_path(scripts / 'stillhouse')} view {str(flow_run.id)[:8]} --store {store}"}
    if run.record.pages.ui_command is not None:
        pages["MLflow"] = run.record.pages.ui_command.replace("mlflow ui", f"{relative_path(scripts / 'mlflow')} ui")
    if run.record.pages.run is not None:
        pages["run in MLflow"] = run.record.pages.run
    if flow_run.ui_url is not None and has_lasting_server():
        pages["Prefect"] = str(flow_run.ui_url)
    else:
        home = os.environ.get("PREFECT_HOME")
        setting = f"PREFECT_HOME={shlex.quote(relative_path(Path(home)))} " if home else ""
        pages["Prefect"] = f"{setting}{relative_path(Path(sys.executable))} -m tasks.server.prefect_server"
    return pages


def relative_path(path: Path) -> str:
    """Return the path from the working directory; unchanged if it lies elsewhere."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)
