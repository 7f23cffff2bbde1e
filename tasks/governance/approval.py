"""Human approval: no training on a dataset before a person approves it, or the time limit decides."""

import logging
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from prefect import Task, task
from prefect.settings import PREFECT_API_URL

from stillhouse.dataset.report.page import REPORT_FILE
from stillhouse.errors import NotApproved
from stillhouse.store import digest
from stillhouse.store.records import write_jsonl
from stillhouse.types import Artifact
from tasks.cache.stage import CACHED_STAGE, Stage, find_cached, load_or_run
from tasks.governance.human_input import ask
from tasks.run.context import Run, RunContext
from tasks.run.flow_run_page import relative_path
from tasks.run.prefect_api import is_gone_or_ended

APPROVAL: Final = Stage("approval", version=1)
_logger = logging.getLogger("stillhouse.approval")


def require_approval(dataset: Artifact | None, run: Run) -> None:
    """Waits until the dataset may be trained on; returns at once if no approval is needed or it was given before.

    Raises:
        NotApproved: a person or the time limit rejected it.
        prefect.exceptions.Pause: the flow run is suspended, and its process ends.
    """
    if not run.config.approval.enabled or dataset is None:
        return
    started = time.monotonic()
    approval = find_cached(APPROVAL, run, {"dataset": dataset})
    cached = approval is not None
    if approval is None:
        approval, _ = load_or_run(APPROVAL, _approval_task(_wait_for_approval(dataset, run)), run, dataset=dataset)
    run.record_stage(APPROVAL.name, approval, cached=cached, seconds=time.monotonic() - started)


def _approval_task(reason: str) -> Task[..., Artifact]:
    """Returns a task that stores the approval of a dataset, so that a later run need not ask again."""

    @task(name="approval", **CACHED_STAGE)
    def approval_task(dataset: Artifact, key: str, context: RunContext) -> Artifact:
        row = {"dataset": dataset.fingerprint, "reason": reason}
        facts = {"reason": reason}
        return context.store.write(
            APPROVAL.name, digest(key), lambda folder: (write_jsonl(folder / "approval.jsonl", [row]), facts)
        )

    return approval_task


def _wait_for_approval(dataset: Artifact, run: Run) -> str:
    """Returns the reason that was given with the approval.

    Raises:
        NotApproved: the dataset was rejected.
    """
    config = run.config.approval
    if PREFECT_API_URL.value() is None:
        answer = None
        no_answer = "nobody could be asked, since the run has no Prefect server (PREFECT_API_URL is not set)"
    else:
        run.record.end_suspended(is_gone_or_ended)
        limit = timedelta(minutes=config.timeout_minutes)
        answer = ask(_question(dataset, run), key=dataset.fingerprint, limit=limit, default=config.at_timeout)
        no_answer = f"nobody answered within {config.timeout_minutes:g} minutes"
    if answer is None:
        decision, reason = config.at_timeout, f"{no_answer}, and approval.at_timeout is `{config.at_timeout}`"
    else:
        decision, reason = answer.decision, answer.reason or "no reason was given"
    outcome = (
        f"the dataset of {dataset.num_rows} rows was {'approved' if decision == 'approve' else 'rejected'}: {reason}"
    )
    if decision == "reject":
        report = relative_path(Path(dataset.uri) / REPORT_FILE)
        raise NotApproved(
            f"{outcome}. Nothing was trained; everything so far is kept. Look at {report}, then change "
            "what the dataset is made of, or run again with approval.enabled false"
        )
    _logger.log(logging.WARNING if answer is None else logging.INFO, "%s", outcome)
    return reason


def _question(dataset: Artifact, run: Run) -> str:
    config = run.config.approval
    until = datetime.now(UTC) + timedelta(minutes=config.timeout_minutes)
    return "\n".join(
        [
            f"Train on this dataset? {dataset.facts['kept']:,} rows kept, {dataset.facts['dropped']:,} dropped.",
            "",
            *(f"- [{purpose}]({address})" for purpose, address in run.pages.items()),
            "",
            f"Without an answer until {until:%Y-%m-%d %H:%M} UTC it is: {config.at_timeout}.",
        ]
    )
