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

from tasks.run.prefect_api import DATASET_CREATED, STUDENT_KEPT, STUDENT_PROMOTED

FLOWS: Final = ("distill", "evaluate-models", "generate", "train-on-policy", "train-sft")
"""Others that share the server may beat slower or wait longer, and are not touched."""
_FLOW_RUNS: Final = ResourceSpecification({"prefect.resource.id": "prefect.flow-run.*"})
_OF_OURS: Final = ResourceSpecification({"prefect.resource.role": "flow", "prefect.resource.name": list(FLOWS)})


def zombies(lapse: timedelta) -> AutomationCore:
    """A flow whose process or machine died sends no heartbeat any more, and nobody else would say so."""
    return _absence(
        "stillhouse: flow runs without heartbeats have crashed",
        after="prefect.flow-run.heartbeat",
        within=lapse,
        message=f"No heartbeat for {lapse.total_seconds():g} s: its process or its machine is gone. Run it again: "
        "stages that finished are cached and a training goes on from its last checkpoint.",
    )


def stuck_pending(wait: timedelta) -> AutomationCore:
    """A run that a worker took and never started holds its deployment's place."""
    return _absence(
        "stillhouse: flow runs that never start have crashed",
        after="prefect.flow-run.Pending",
        within=wait,
        message=f"Pending for {wait.total_seconds() / 60:g} min: the worker that took it is gone, or its container "
        "cannot be started. See the worker's log and run it again.",
    )


def _absence(name: str, *, after: str, within: timedelta, message: str) -> AutomationCore:
    return AutomationCore(
        name=name,
        description=message,
        tags=["stillhouse"],
        trigger=EventTrigger(
            posture=Posture.Proactive,
            after={after},
            expect={"prefect.flow-run.*"},
            match=_FLOW_RUNS,
            match_related=_OF_OURS,
            for_each={"prefect.resource.id"},
            threshold=1,
            within=within,
        ),
        actions=[ChangeFlowRunState(state=StateType.CRASHED, name="Crashed", message=message)],
    )


def trained_on_new_data(name: str, source: UUID, training: UUID) -> AutomationCore:
    """The training `train-sft/NAME` follows each dataset that `generate/NAME` made anew, with that run's own config."""
    config = {"__prefect_kind": "jinja", "template": "{{ event.payload.config | tojson }}"}
    return _presence(
        f"stillhouse: train-sft/{name} follows a new dataset of generate/{name}",
        expect={DATASET_CREATED},
        match=ResourceSpecification({"prefect.resource.id": "stillhouse.dataset.*"}),
        related=ResourceSpecification(
            {"prefect.resource.role": "deployment", "prefect.resource.id": f"prefect.deployment.{source}"}
        ),
        action=RunDeployment(
            deployment_id=training, parameters={"config": {"__prefect_kind": "json", "value": config}}
        ),
    )


def failures_told(block: UUID) -> AutomationCore:
    """Who is told of flow runs that failed or crashed."""
    return _presence(
        "stillhouse: tell of failed flow runs",
        expect={"prefect.flow-run.Failed", "prefect.flow-run.Crashed", "prefect.flow-run.TimedOut"},
        match=_FLOW_RUNS,
        related=_OF_OURS,
        action=SendNotification(
            block_document_id=block,
            subject="{{ flow.name }} {{ flow_run.state.name | lower }}: {{ flow_run.name }}",
            body="{{ flow_run.state.message }}\n{{ flow_run | ui_url }}",
        ),
    )


def students_told(block: UUID) -> AutomationCore:
    """Who is told whether a new student became the champion."""
    return _presence(
        "stillhouse: tell of promoted and kept students",
        expect={STUDENT_PROMOTED, STUDENT_KEPT},
        match=ResourceSpecification({"prefect.resource.id": "stillhouse.model.*"}),
        related=_OF_OURS,
        action=SendNotification(
            block_document_id=block,
            subject="{{ event.payload.model }}: {{ event.name.split('.')[-1] }}",
            body="{{ event.payload.message }}\n{{ event.payload.page }}\n{{ flow_run | ui_url }}",
        ),
    )


def _presence(
    name: str, *, expect: set[str], match: ResourceSpecification, related: ResourceSpecification, action: ActionTypes
) -> AutomationCore:
    return AutomationCore(
        name=name,
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


def trainings(client: SyncPrefectClient) -> Iterator[AutomationCore]:
    """One for each config that both `generate` and `train-sft` are deployed with."""
    known = {flow: _deployments_of(client, flow) for flow in ("generate", "train-sft")}
    for name, source in known["generate"].items():
        if name in known["train-sft"]:
            yield trained_on_new_data(name, source, known["train-sft"][name])


def _deployments_of(client: SyncPrefectClient, flow: str) -> dict[str, UUID]:
    found = client.read_deployments(flow_filter=FlowFilter(name=FlowFilterName(any_=[flow])))
    return {deployment.name: deployment.id for deployment in found}


def ensure(client: SyncPrefectClient, wanted: AutomationCore) -> str:
    """Creates the automation or brings it up to date; what was done, in a word."""
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
    """Sees to every automation and says what was done."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--notify", metavar="TYPE/NAME", help="a saved notification block, such as slack-webhook/team")
    parser.add_argument(
        "--pending-minutes",
        type=float,
        default=30.0,
        help="how long a run may be Pending; more than the longest wait where a cluster queues runs",
    )
    given = parser.parse_args()
    beat_s = get_current_settings().flows.heartbeat_frequency
    if beat_s is None:
        sys.exit("PREFECT_FLOWS_HEARTBEAT_FREQUENCY is not set: run this as `make automations`")
    with get_client(sync_client=True) as client:
        wanted = [
            zombies(timedelta(seconds=3 * beat_s)),
            stuck_pending(timedelta(minutes=given.pending_minutes)),
            *trainings(client),
        ]
        if given.notify is not None:
            block = _block(client, given.notify)
            wanted += [failures_told(block), students_told(block)]
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
