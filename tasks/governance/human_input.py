"""Input from a person, on the flow run's page.

A run of a deployment is suspended: its process ends, and the answer reschedules the flow run, which starts from the top
with every earlier stage cached. A run without a deployment has nothing that would start it again, so it waits.

Prefect fails a run that is not resumed in time. Here the time limit is an answer too: an automation of the run resumes
it then, without input.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Final, Literal

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.objects import FlowRun
from prefect.context import FlowRunContext
from prefect.events import AutomationCore, EventTrigger, Posture, ResourceSpecification
from prefect.events.actions import ResumeFlowRun
from prefect.flow_runs import pause_flow_run, suspend_flow_run
from prefect.input import RunInput
from prefect.runtime import flow_run as this_flow_run

from tasks.run.prefect_api import is_gone_or_ended

Decision = Literal["approve", "reject"]

_POLL_S: Final = 2
_GRACE_S: Final = 3600
"""Time between our limit and Prefect's own, which fails the run."""
_TIME_LIMIT: Final = "time limit of flow run "
"""Prefix of an automation's name, before the id of its flow run."""
_logger = logging.getLogger("stillhouse.approval")


class Answer(RunInput):
    """A decision and its reason."""

    decision: Decision
    reason: str = ""


def ask(question: str, *, key: str, limit: timedelta, default: Decision) -> Answer | None:
    """Waits for a person's answer and returns it; None if nobody answered.

    Args:
        question: markdown, shown above the form.
        key: identifies the question in the run; after a resume it returns the answer given.
        limit: how long to wait.
        default: decision that the form shows first, and that resuming without input means.

    Raises:
        prefect.exceptions.Pause: the run is suspended, and its process ends.
    """
    context = FlowRunContext.get()
    assert context is not None
    assert context.flow_run is not None
    flow_run = context.flow_run
    form = Answer.with_initial_data(description=question, decision=default)
    timeout = round(limit.total_seconds()) + _GRACE_S
    with get_client(sync_client=True) as client:
        _remove_stale_automations(client)
        # A retry of a failed run asks again; a resumed run does not.
        ends = sum(state.is_final() for state in client.read_flow_run_states(flow_run.id))
        key = f"{key[:16]}-{ends}"
        with _resumed_after(limit, flow_run, client):
            if flow_run.deployment_id is not None and flow_run.parent_task_run_id is None:
                _logger.info("the run is suspended and waits for an answer on its page: %s", this_flow_run.ui_url)
                answer = suspend_flow_run(form, timeout=timeout, key=key)
            else:
                _logger.warning(
                    "waiting for an answer on %s (Resume), at most %g minutes; then the answer is %s",
                    this_flow_run.ui_url,
                    limit.total_seconds() / 60,
                    default,
                )
                answer = pause_flow_run(form, timeout=timeout, poll_interval=_POLL_S, key=key)
    return answer if answer.model_fields_set else None


@contextmanager
def _resumed_after(limit: timedelta, flow_run: FlowRun, client: SyncPrefectClient) -> Iterator[None]:
    """Creates an automation that resumes the run without input after `limit`, also if this process has ended."""
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
    """Removes automations of runs that were cancelled while they waited."""
    for automation in client.read_automations():
        _, is_ours, flow_run_id = automation.name.partition(_TIME_LIMIT)
        if is_ours and is_gone_or_ended(flow_run_id):
            client.delete_automation(automation.id)
