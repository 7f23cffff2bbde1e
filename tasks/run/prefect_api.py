"""Names of the events that automations react to, and whether a flow run has ended.

Prefect adds the flow run, its flow and its deployment to an event as related resources. An automation for one flow
matches the resource of role `flow` by its name.
"""

from contextlib import suppress
from typing import Final
from uuid import UUID

from httpx import HTTPError
from prefect.client.orchestration import get_client
from prefect.exceptions import ObjectNotFound

DATASET_CREATED: Final = "stillhouse.dataset.created"
"""A new dataset was created. Resource: `stillhouse.dataset.FINGERPRINT`. Payload: `uri`, `fingerprint`,
`num_rows`, and `config`, the whole config of the run that made it, for a training to follow."""
STUDENT_PROMOTED: Final = "stillhouse.student.promoted"
"""A student became the champion. Resource: `stillhouse.model.NAME`, by the registered model. Payload: `model`, the
registered model's name; `student` and `version`; `reference`, the model it was compared with (the champion, or the
base while there is none); `message`, the decision and its reason; and `page`, its URL in MLflow, or None."""
STUDENT_KEPT: Final = "stillhouse.student.kept"
"""A student was evaluated and the champion stays; resource and payload as for `STUDENT_PROMOTED`."""

RUN_LEFT: Final = "stillhouse.flow-run.left"
"""A suspended run has saved its work and its process leaves; heartbeats may have come since it was suspended. Resource:
the flow run."""


def has_ended(flow_run_id: str, *, if_deleted: bool = False) -> bool:
    """Return whether a flow run has ended: `if_deleted` where this server does not know it, False if none answers."""
    try:
        with get_client(sync_client=True) as client:
            state = client.read_flow_run(UUID(flow_run_id)).state
    except ObjectNotFound:
        return if_deleted
    except HTTPError:
        return False
    return state is not None and state.is_final()


def is_deleted(flow_run_id: UUID) -> bool:
    """Return whether the server does not know a flow run any more; False if none answers."""
    with suppress(HTTPError), get_client(sync_client=True) as client:
        try:
            client.read_flow_run(flow_run_id)
        except ObjectNotFound:
            return True
    return False
