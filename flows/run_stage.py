"""One stage for a flow run that waits for it, on a pool that has what the stage needs; no person starts it."""

from prefect import flow

from flows.distill import STAGES
from stillhouse.types import JsonObject
from tasks.remote.stage_worker import run_stage_call


@flow(name="run-stage", validate_parameters=False)
def run_stage(call: JsonObject) -> None:
    """Run the stage that another flow run handed over; what it makes goes to the store that both share."""
    run_stage_call(call, STAGES)
