"""What Prefect's server knows of other flow runs."""

from uuid import UUID

from httpx import HTTPError
from prefect.client.orchestration import get_client
from prefect.exceptions import ObjectNotFound


def has_ended(flow_run_id: str) -> bool:
    """Whether a flow run is known to have ended; one of another server is not."""
    try:
        with get_client(sync_client=True) as client:
            state = client.read_flow_run(UUID(flow_run_id)).state
    except (ObjectNotFound, HTTPError):
        return False
    return state is not None and state.is_final()
