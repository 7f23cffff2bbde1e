"""Creates what Prefect's server does by itself: `python deployments/automations.py`, as often as you like.

    python deployments/automations.py --notify slack-webhook/team    # also tell a notification block of yours

Automations are known by their names. One that is there is brought up to date and stays switched off if it was. Without
`--notify` those that tell somebody are left as they are.
"""

import argparse
import sys
from collections.abc import Iterator
from datetime import timedelta
from typing import Final
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import FlowFilter, FlowFilterName
from prefect.client.schemas.objects import StateType
from prefect.events.actions import ActionTypes, ChangeFlowRunState, RunDeployment, SendNotification
from prefect.events.schemas.automations import AutomationCore, EventTrigger, Posture, ResourceSpecification
from prefect.exceptions import ObjectNotFound
from prefect.settings import get_current_settings

from tasks.run.prefect_api import DATASET_CREATED, RUN_LEFT, STUDENT_KEPT, STUDENT_PROMOTED

FLOWS: Final = ("distill", "evaluate-models", "generate", "score-rows", "train-on-policy", "train-sft")
"""Flows that people start. Others that share the server may beat slower or wait longer, and are not touched."""
_STAGE_FLOW: Final = "run-stage"
"""A stage of another flow run, which waits for it and starts it again: nobody is notified of it."""
_LOST_PLACE: Final = "Execution was cancelled by the runtime environment."
"""Prefect's words where the lease of a concurrency limit cannot be renewed."""
_FLOW_RUNS: Final = ResourceSpecification({"prefect.resource.id": "prefect.flow-run.*"})
_OF_OURS: Final = ResourceSpecification({"prefect.resource.role": "flow", "prefect.resource.name": list(FLOWS)})
_OURS_AND_STAGES: Final = ResourceSpecification(
    {"prefect.resource.role": "flow", "prefect.resource.name": [*FLOWS, _STAGE_FLOW]}
)
_FAILURES: Final = {f"prefect.flow-run.{state}" for state in ("Failed", "Crashed", "TimedOut")}
_OTHER_EVENTS: Final = {RUN_LEFT} | {
    f"prefect.flow-run.{name}"
    for name in (
        *("heartbeat", "Running", "Retrying", "Completed", "Cancelling", "Cancelled", "Suspended", "Paused"),
        *("Resuming", "Scheduled", "AwaitingRetry", "AwaitingConcurrencySlot", "Late"),
    )
}
"""Signs that a run goes on, waits for a worker or has ended. Not the failures: where SQLite is locked for one of the
automations that an event concerns, all of them get it again, and people were told of one failure three times. A run
that failed cannot be marked as crashed any more."""
_BEFORE_START: Final = {f"prefect.flow-run.{state}" for state in ("Pending", "Submitting", "InfrastructurePending")}


def crashed(name: str, *, after: set[str], within: timedelta, message: str) -> AutomationCore:
    """Mark flow runs as crashed that send none of the other events `within` this time `after` one of these."""
    return AutomationCore(
        name=f"stillhouse: {name}",
        description=message,
        tags=["stillhouse"],
        trigger=EventTrigger(
            posture=Posture.Proactive,
            after=after,
            expect=_OTHER_EVENTS,
            match=_FLOW_RUNS,
            match_related=_OURS_AND_STAGES,
            for_each={"prefect.resource.id"},
            threshold=1,
            within=within,
        ),
        actions=[ChangeFlowRunState(state=StateType.CRASHED, name="Crashed", message=message)],
    )


def reaction(
    name: str, expect: set[str], match: ResourceSpecification, related: ResourceSpecification, action: ActionTypes
) -> AutomationCore:
    """Act on each of the expected events."""
    return AutomationCore(
        name=f"stillhouse: {name}",
        tags=["stillhouse"],
        trigger=EventTrigger(
            posture=Posture.Reactive,
            expect=expect,
            match=match,
            match_related=related,
            for_each={"prefect.resource.id"},
            threshold=1,
            within=timedelta(0),
        ),
        actions=[action],
    )


def crashes(heartbeat_s: int, pending: timedelta) -> Iterator[AutomationCore]:
    """Yield automations for flow runs that nobody else would mark as crashed."""
    lapse = timedelta(seconds=3 * heartbeat_s)
    yield crashed(
        "flow runs without heartbeats have crashed",
        after={"prefect.flow-run.heartbeat"},
        within=lapse,
        message=f"No heartbeat for {lapse.total_seconds():g} s: its process or its machine is gone. Run it again: "
        "stages that finished are cached and a training goes on from its last checkpoint.",
    )
    # A run that a worker took and never started holds its deployment's place.
    yield crashed(
        "flow runs that never start have crashed",
        after=_BEFORE_START,
        within=pending,
        message=f"Pending for {pending.total_seconds() / 60:g} min: the worker that took it is gone, or its container "
        "cannot be started. See the worker's log and run it again.",
    )


def restarts() -> Iterator[AutomationCore]:
    """Yield the automation that starts a deployment's run again which Prefect ended since it lost its place."""
    yield reaction(
        "flow runs that lost their place go on",
        {"prefect.flow-run.Crashed"},
        ResourceSpecification({**_FLOW_RUNS.root, "prefect.state-message": _LOST_PLACE}),
        _OF_OURS,
        ChangeFlowRunState(
            state=StateType.SCHEDULED,
            name="AwaitingRetry",
            message="Prefect's server gave its place to others while it was away; goes on from its last checkpoint.",
        ),
    )


def notifications(block: UUID) -> Iterator[AutomationCore]:
    """Yield automations that notify a block of failed flow runs, and of students that were promoted or not."""
    yield reaction(
        "tell of failed flow runs",
        _FAILURES,
        # One that lost its place goes on by itself.
        ResourceSpecification({**_FLOW_RUNS.root, "prefect.state-message": f"!{_LOST_PLACE}"}),
        _OF_OURS,
        SendNotification(
            block_document_id=block,
            subject="{{ flow.name }} {{ flow_run.state.name | lower }}: {{ flow_run.name }}",
            body="{{ flow_run.state.message }}\n{{ flow_run | ui_url }}",
        ),
    )
    yield reaction(
        "tell of promoted and kept students",
        {STUDENT_PROMOTED, STUDENT_KEPT},
        ResourceSpecification({"prefect.resource.id": "stillhouse.model.*"}),
        _OF_OURS,
        SendNotification(
            block_document_id=block,
            subject="{{ event.payload.model }}: {{ event.name.split('.')[-1] }}",
            body="{{ event.payload.message }}\n{{ event.payload.page }}\n{{ flow_run | ui_url }}",
        ),
    )


def trainings(client: SyncPrefectClient) -> Iterator[AutomationCore]:
    """Yield for each config of both `generate` and `train-sft` one by which a new dataset starts the training.

    The training takes the config of the run that made the dataset.
    """
    # An automation is known by its name, which is that of the config: whoever switched it off finds it off.
    deployments = {
        flow: {
            deployment.name.removesuffix(f"-{flow}"): deployment.id
            for deployment in client.read_deployments(flow_filter=_named(flow))
        }
        for flow in ("generate", "train-sft")
    }
    config = {"__prefect_kind": "jinja", "template": "{{ event.payload.config | tojson }}"}
    parameters = {"config": {"__prefect_kind": "json", "value": config}}
    for name, source in deployments["generate"].items():
        if training := deployments["train-sft"].get(name):
            yield reaction(
                f"train-sft/{name} follows a new dataset of generate/{name}",
                {DATASET_CREATED},
                ResourceSpecification({"prefect.resource.id": "stillhouse.dataset.*"}),
                ResourceSpecification(
                    {"prefect.resource.role": "deployment", "prefect.resource.id": f"prefect.deployment.{source}"}
                ),
                RunDeployment(deployment_id=training, parameters=parameters),
            )


def _named(flow: str) -> FlowFilter:
    return FlowFilter(name=FlowFilterName(any_=[flow]))


def ensure(client: SyncPrefectClient, wanted: AutomationCore) -> str:
    """Create the automation or update it; return what was done."""
    known = client.read_automations_by_name(wanted.name)
    if not known:
        client.create_automation(wanted)
        return "created"
    wanted = wanted.model_copy(update={"enabled": known[0].enabled})
    if AutomationCore(**known[0].model_dump()) == wanted:
        return "unchanged"
    client.update_automation(known[0].id, AutomationCore(**wanted.model_dump(exclude={"owner_resource"})))
    return "updated"


def main() -> None:
    """See to every automation and say what was done."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--notify", metavar="TYPE/NAME", help="a saved notification block, such as slack-webhook/team")
    parser.add_argument(
        "--pending-minutes",
        type=float,
        default=30.0,
        help="how long a run may be Pending; more than the longest wait where a cluster queues runs",
    )
    options = parser.parse_args()
    heartbeat_s = get_current_settings().flows.heartbeat_frequency
    if heartbeat_s is None:
        sys.exit("PREFECT_FLOWS_HEARTBEAT_FREQUENCY is not set: run this as `make automations`")
    with get_client(sync_client=True) as client:
        wanted = [*restarts(), *crashes(heartbeat_s, timedelta(minutes=options.pending_minutes)), *trainings(client)]
        if options.notify is not None:
            wanted += notifications(_block(client, options.notify))
        for automation in wanted:
            print(f"{automation.name}: {ensure(client, automation)}")  # noqa: T201


def _block(client: SyncPrefectClient, name: str) -> UUID:
    kind, _, document = name.partition("/")
    try:
        return client.read_block_document_by_name(document, kind, include_secrets=False).id
    except ObjectNotFound:
        sys.exit(f"--notify {name}: no such block; make one of a type that notifies under Blocks in Prefect's pages")


if __name__ == "__main__":
    main()
