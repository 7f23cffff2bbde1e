"""What a run and Prefect's server tell each other: events for automations, and whether a flow run has ended.

An event's related resources are added by Prefect: the flow run, its flow and its deployment, with their names. An
automation that is to hear one flow alone matches the resource of role `flow` by its name.
"""

from typing import Final, Literal
from uuid import UUID

from httpx import HTTPError
from prefect.client.orchestration import get_client
from prefect.events import emit_event
from prefect.exceptions import ObjectNotFound

from stillhouse.types import JsonObject

EventName = Literal["stillhouse.dataset.created", "stillhouse.student.promoted", "stillhouse.student.kept"]

DATASET_CREATED: Final = "stillhouse.dataset.created"
"""A dataset that no earlier run had made. Resource: `stillhouse.dataset.FINGERPRINT`. Payload: `uri`, `fingerprint`,
`num_rows`, and `config`, the whole config of the run that made it, for a training that is to follow."""
STUDENT_PROMOTED: Final = "stillhouse.student.promoted"
"""A student became the champion. Resource: `stillhouse.model.NAME`, by the registered model. Payload: `model`, the
registered model's name; `student` and `version`, who is meant; `reference`, whom it was compared with (champion, or
base while there is none); `message`, the decision and why; and `page`, its address in MLflow, or None."""
STUDENT_KEPT: Final = "stillhouse.student.kept"
"""A student was measured and the champion stays; resource and payload as for `STUDENT_PROMOTED`."""


def emit(name: EventName, resource_id: str, payload: JsonObject) -> None:
    """Sends an event to the Prefect server in the background; one that cannot be sent is logged, never raised.

    Args:
        name: what happened.
        resource_id: what it happened to, in dotted form as automations match it.
        payload: JSON, for the templates of an automation's message or parameters.
    """
    emit_event(name, resource={"prefect.resource.id": resource_id}, payload=payload)


def has_ended(flow_run_id: str) -> bool:
    """Whether a flow run is known to have ended; one of another server is not."""
    try:
        with get_client(sync_client=True) as client:
            state = client.read_flow_run(UUID(flow_run_id)).state
    except (ObjectNotFound, HTTPError):
        return False
    return state is not None and state.is_final()
