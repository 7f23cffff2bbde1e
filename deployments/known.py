"""A deployment on the server, in the form in which a file of deployments is read."""

from typing import Final

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import (
    DeploymentFilter,
    DeploymentFilterId,
    FlowRunFilter,
    FlowRunFilterState,
    FlowRunFilterStateType,
)
from prefect.client.schemas.objects import TERMINAL_STATES, FlowRun, StateType
from prefect.client.schemas.responses import DeploymentResponse
from prefect.exceptions import ObjectNotFound
from prefect.states import Scheduled

from deployments.prefect_file import schedule_values
from stillhouse.types import JsonObject

_NOT_FINAL: Final = [state for state in StateType if state not in TERMINAL_STATES]


def find(client: SyncPrefectClient, name: str) -> DeploymentResponse | None:
    """Return the deployment FLOW/NAME, None if there is none."""
    try:
        return client.read_deployment_by_name(name)
    except ObjectNotFound:
        return None


def unfinished_run(client: SyncPrefectClient, deployment: DeploymentResponse) -> FlowRun | None:
    """Return a run that would be lost with its deployment: any but those that a schedule has yet to start."""
    runs = client.read_flow_runs(
        deployment_filter=DeploymentFilter(id=DeploymentFilterId(any_=[deployment.id])),
        flow_run_filter=FlowRunFilter(state=FlowRunFilterState(type=FlowRunFilterStateType(any_=_NOT_FINAL))),
    )
    planned = Scheduled().name
    return next((run for run in runs if not (run.auto_scheduled and run.state_name == planned)), None)


def automations_with(client: SyncPrefectClient, deployment: DeploymentResponse) -> list[str]:
    """Return the names of the automations that people made for a deployment; `automations.py` sees to its own."""
    return [
        known.name
        for known in client.read_automations()
        if str(deployment.id) in known.model_dump_json() and "stillhouse" not in known.tags
    ]


def values_of(known: DeploymentResponse) -> JsonObject:
    """Return what a person can set on Prefect's pages, as `Entry.values` does of a file."""
    limit, options = known.global_concurrency_limit, known.concurrency_options
    return {
        "description": known.description or "",
        "tags": known.tags,
        "work_pool_name": known.work_pool_name,
        "work_queue_name": known.work_queue_name,
        "job_variables": known.job_variables,
        "concurrency_limit": limit.limit if limit else None,
        "concurrency_options": options.model_dump(mode="json", exclude_none=True) if options else None,
        "enforce_parameter_schema": known.enforce_parameter_schema,
        "paused": known.paused,
        # A page gives no slug to those that are added there.
        "schedules": {
            schedule.slug or f"added-{number}": schedule_values(schedule)
            for number, schedule in enumerate(known.schedules, 1)
        },
        "parameters": known.parameters,
    }


def create(client: SyncPrefectClient, flow: str, name: str, values: JsonObject, code: JsonObject) -> None:
    """Create a deployment."""
    known_flow = client.create_flow_from_name(flow)
    schedules = list(values["schedules"].values())
    body = {**values, **code, "flow_id": str(known_flow), "name": name, "schedules": schedules}
    client.request("POST", "/deployments/", json=body)


def update(client: SyncPrefectClient, known: DeploymentResponse, values: JsonObject, code: JsonObject) -> None:
    """Bring a deployment up to date.

    Schedules that stay keep their ids, by which the server knows the runs that it has made of them already.
    """
    ids = dict(zip(values_of(known)["schedules"], (schedule.id for schedule in known.schedules), strict=True))
    for slug, schedule in values["schedules"].items():
        if slug not in ids:
            client.request("POST", "/deployments/{id}/schedules", path_params={"id": known.id}, json=[schedule])
        elif schedule != values_of(known)["schedules"][slug]:
            client.request(
                "PATCH",
                "/deployments/{id}/schedules/{schedule_id}",
                path_params={"id": known.id, "schedule_id": ids[slug]},
                json=schedule,
            )
    for slug in ids.keys() - values["schedules"].keys():
        client.delete_deployment_schedule(known.id, ids[slug])
    # Last, as it keeps what was deployed: where it fails, the next deployment does all of it again.
    body = {key: value for key, value in {**values, **code}.items() if key != "schedules"}
    client.request("PATCH", "/deployments/{id}", path_params={"id": known.id}, json=body)
