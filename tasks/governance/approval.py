"""Human approval: no training on a dataset before a person approves it, and none after the time limit.

A run of a deployment is suspended: its process ends, and the answer reschedules the flow run, which starts from the top
with every earlier stage cached. A run without a deployment has nothing that would start it again, so it waits.

Prefect fails a run that is not resumed in time. Here the time limit is an answer too: an automation of the run resumes
it then, without input.
"""

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, Literal

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.objects import FlowRun
from prefect.context import FlowRunContext
from prefect.events import AutomationCore, EventTrigger, Posture, ResourceSpecification
from prefect.events.actions import ResumeFlowRun
from prefect.flow_runs import pause_flow_run, suspend_flow_run
from prefect.input import RunInput
from prefect.runtime import flow_run as this_flow_run

from stillhouse.dataset.report.page import REPORT_FILE
from stillhouse.errors import NotApproved
from stillhouse.store import digest
from stillhouse.types import Artifact
from tasks.cache.stage import find_cached, load_or_run
from tasks.run.context import Run, RunContext
from tasks.run.flow_run_page import relative_path
from tasks.run.prefect_api import has_ended
from tasks.run.stage import Stage
from tasks.server.temporary_server import has_lasting_server

APPROVAL: Final = Stage("approval", version=1, result="{reason}", when=lambda config: config.approval.enabled)

_POLL_S: Final = 2
_GRACE_S: Final = 3600
"""Time between our limit and Prefect's own, which fails the run."""
_TIME_LIMIT: Final = "time limit of flow run "
"""Prefix of an automation's name, before the id of its flow run."""
_logger = logging.getLogger("stillhouse.approval")


class Answer(RunInput):
    """A person's decision and its reason: the form on the flow run's page."""

    decision: Literal["approve", "reject"]
    reason: str = ""


def require_approval(dataset: Artifact | None, run: Run) -> None:
    """Wait until the dataset may be trained on; return at once if no approval is needed or it was given before.

    Raises NotApproved if a person or the time limit rejected it; prefect.exceptions.Pause if the flow run is suspended,
    and its process ends.
    """
    if not APPROVAL.when(run.config) or dataset is None:
        return
    started = time.monotonic()
    approval = find_cached(APPROVAL, run, {"dataset": dataset})
    cached = approval is not None
    if approval is None:
        reason = _wait_for_approval(dataset, run)
        approval, _ = load_or_run(APPROVAL, run, {"dataset": dataset}, unkeyed={"reason": reason})
    run.record_stage(APPROVAL, approval, cached=cached, seconds=time.monotonic() - started, inputs=[dataset])


@APPROVAL.made_by
def approval_task(dataset: Artifact, reason: str, key: str, context: RunContext) -> Artifact:
    """Store the approval of a dataset, so that a later run need not ask again."""
    row = {"dataset": dataset.fingerprint, "reason": reason}
    return context.store.write_rows(APPROVAL.name, digest(key), "approval.jsonl", [row], {"reason": reason})


def _wait_for_approval(dataset: Artifact, run: Run) -> str:
    """Return the reason of the approval; raise NotApproved if the dataset was rejected."""
    config = run.config.approval
    answer = None
    if not has_lasting_server():
        no_answer = "nobody could be asked, since the run has no Prefect server (PREFECT_API_URL is not set)"
    else:
        answer = _ask(dataset, run)
        no_answer = f"nobody answered within {config.timeout_minutes:g} minutes"
    if answer is None:
        is_approved, reason = False, no_answer
    else:
        is_approved, reason = answer.decision == "approve", answer.reason or "no reason was given"
    outcome = f"the dataset of {dataset.num_rows} rows was {'approved' if is_approved else 'rejected'}: {reason}"
    if not is_approved:
        report = relative_path(Path(dataset.uri) / REPORT_FILE)
        raise NotApproved(
            f"{outcome}. Nothing was trained; everything so far is kept. Look at {report}, then change "
            "what the dataset is made of, or run again with approval.enabled false"
        )
    _logger.info("%s", outcome)
    return reason


def _ask(dataset: Artifact, run: Run) -> Answer | None:
    """Return a person's answer; None if nobody answered in time.

    Raises prefect.exceptions.Pause if the run is suspended, and its process ends.
    """
    config = run.config.approval
    limit = timedelta(minutes=config.timeout_minutes)
    context = FlowRunContext.get()
    assert context is not None
    assert context.flow_run is not None
    flow_run = context.flow_run
    form = Answer.with_initial_data(description=_question(dataset, run), decision="reject")
    timeout = round(limit.total_seconds()) + _GRACE_S
    with get_client(sync_client=True) as client:
        _remove_stale_automations(client)
        # The key identifies the question. A retry of a failed run asks again; a resumed run finds the answer given.
        ends = sum(state.is_final() for state in client.read_flow_run_states(flow_run.id))
        key = f"{dataset.fingerprint[:16]}-{ends}"
        with _resumed_after(limit, flow_run, client):
            if flow_run.deployment_id is not None and flow_run.parent_task_run_id is None:
                _logger.info("the run is suspended and waits for an answer on its page: %s", this_flow_run.ui_url)
                answer = suspend_flow_run(form, timeout=timeout, key=key)
            else:
                _logger.warning(
                    "waiting for an answer on %s (Resume), at most %g minutes; then it is rejected",
                    this_flow_run.ui_url,
                    config.timeout_minutes,
                )
                answer = pause_flow_run(form, timeout=timeout, poll_interval=_POLL_S, key=key)
    return answer if answer.model_fields_set else None


def _question(dataset: Artifact, run: Run) -> str:
    config = run.config.approval
    until = datetime.now(UTC) + timedelta(minutes=config.timeout_minutes)
    return "\n".join(
        [
            f"Train on this dataset? {dataset.facts['kept']:,} rows kept, {dataset.facts['dropped']:,} dropped.",
            "",
            *(f"- [{purpose}]({address})" for purpose, address in run.pages.items()),
            "",
            f"Without an answer until {until:%Y-%m-%d %H:%M} UTC it is rejected.",
        ]
    )


@contextmanager
def _resumed_after(limit: timedelta, flow_run: FlowRun, client: SyncPrefectClient) -> Iterator[None]:
    """Create an automation that resumes the run without input after `limit`, also if this process has ended."""
    resource = f"prefect.flow-run.{flow_run.id}"
    client.delete_resource_owned_automations(resource)
    trigger = EventTrigger(
        match=ResourceSpecification({"prefect.resource.id": resource}),
        for_each={"prefect.resource.id"},
        after={"prefect.flow-run.Suspended", "prefect.flow-run.Paused"},
        # Not every event: while it is paused, a run sends heartbeats.
        expect={f"prefect.flow-run.{state}" for state in ("Resuming", "Running", "Cancelled", "Failed", "Crashed")},
        posture=Posture.Proactive,
        threshold=1,
        within=limit,
    )
    client.create_automation(
        AutomationCore(
            name=f"{_TIME_LIMIT}{flow_run.id}",
            description=f"Resumes {flow_run.name} when nobody has answered what it asks. Removed when it goes on.",
            trigger=trigger,
            actions=[ResumeFlowRun()],
            owner_resource=resource,
        )
    )
    # Kept if the block raises: a suspended run comes back here, and a run that ended cannot be resumed.
    yield
    client.delete_resource_owned_automations(resource)


def _remove_stale_automations(client: SyncPrefectClient) -> None:
    """Remove automations of runs that were cancelled while they waited."""
    for automation in client.read_automations():
        _, is_ours, flow_run_id = automation.name.partition(_TIME_LIMIT)
        if is_ours and has_ended(flow_run_id, if_deleted=True):
            client.delete_automation(automation.id)
