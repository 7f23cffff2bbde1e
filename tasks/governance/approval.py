"""The human gate: no training on a dataset before a person has agreed to it, or the time limit has answered."""

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
from tasks.cache.stage import CACHED_STAGE, Stage, at_hand, recall
from tasks.governance.human_input import ask, is_over
from tasks.run.context import Run, RunContext
from tasks.run.flow_run_page import near

APPROVAL: Final = Stage("approval", version=1)
_logger = logging.getLogger("stillhouse.approval")


def require_approval(dataset: Artifact | None, run: Run) -> None:
    """Returns when the dataset may be trained on; at once where nobody is to be asked, or has agreed to it before.

    Raises:
        NotApproved: a person or the time limit said no.
        prefect.exceptions.Pause: the flow run is suspended, and its process ends.
    """
    if not run.config.approval.enabled or dataset is None:
        return
    started = time.monotonic()
    approval = at_hand(APPROVAL, run, {"dataset": dataset})
    cached = approval is not None
    if approval is None:
        approval, _ = recall(APPROVAL, _recording(_reason_to_train(dataset, run)), run, dataset=dataset)
    run.note_stage(APPROVAL.name, approval, cached=cached, seconds=time.monotonic() - started)


def _recording(reason: str) -> Task[..., Artifact]:
    """A stage that keeps in the store that a dataset may be trained on, so that a later run need not ask again."""

    @task(name="approval", **CACHED_STAGE)
    def approval_task(dataset: Artifact, key: str, context: RunContext) -> Artifact:
        row = {"dataset": dataset.fingerprint, "reason": reason}
        facts = {"reason": reason}
        return context.store.write(
            APPROVAL.name, digest(key), lambda folder: (write_jsonl(folder / "approval.jsonl", [row]), facts)
        )

    return approval_task


def _reason_to_train(dataset: Artifact, run: Run) -> str:
    """Why the dataset may be trained on.

    Raises:
        NotApproved: it may not.
    """
    config = run.config.approval
    if PREFECT_API_URL.value() is None:
        answer = None
        silence = "nobody could be asked, since the run has no Prefect server (PREFECT_API_URL is not set)"
    else:
        run.record.end_suspended(is_over)
        limit = timedelta(minutes=config.timeout_minutes)
        answer = ask(_question(dataset, run), key=dataset.fingerprint, limit=limit, default=config.at_timeout)
        silence = f"nobody answered within {config.timeout_minutes:g} minutes"
    if answer is None:
        decision, reason = config.at_timeout, f"{silence}, and approval.at_timeout is `{config.at_timeout}`"
    else:
        decision, reason = answer.decision, answer.reason or "no reason was given"
    told = f"the dataset of {dataset.num_rows} rows was {'approved' if decision == 'approve' else 'rejected'}: {reason}"
    if decision == "reject":
        raise NotApproved(
            f"{told}. Nothing was trained; everything so far is kept. Look at {near(Path(dataset.uri) / REPORT_FILE)}, "
            "then change what the dataset is made of, or run again with approval.enabled false"
        )
    _logger.warning("%s", told) if answer is None else _logger.info("%s", told)
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
