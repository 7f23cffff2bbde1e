"""The config of a run whose schedule a person added on the page of a deployment."""

from typing import Any

from prefect import flow
from prefect.client.orchestration import get_client
from prefect.flow_engine import run_flow
from prefect.runtime import flow_run
from prefect.states import Pending

from stillhouse.config import parse_config
from tasks.run.given_config import given_config
from tasks.run.run_name import run_name

FILE: dict[str, Any] = {
    "prompts": {"source": "ours.jsonl", "max_prompts": 9},
    "student": {"model": "Qwen/Qwen3-0.6B"},
}


@flow(flow_run_name=run_name, validate_parameters=False)
def given(config: Any) -> Any:
    return flow_run.name, given_config(config)


def test_what_a_schedule_of_the_page_does_not_change_is_as_the_deployment_has_it() -> None:
    # As the form behind + Schedule sends it: nothing but what was changed, and a section that was opened is a group.
    schedule = {
        "schedule": {"interval": 3600, "anchor_date": "2026-01-01T00:00:00Z"},
        "parameters": {"config": {"prompts": {"max_prompts": 4}, "rollouts": {"more": {"timeout_s": 60}}}},
        "active": True,
    }
    config = parse_config(FILE, origin="file").model_dump(mode="json", exclude_none=True)
    with get_client(sync_client=True) as client:
        deployment = client.create_deployment(client.create_flow(given), name="nightly", parameters={"config": config})
        place = {"id": deployment}
        client.request("POST", "/deployments/{id}/schedules", path_params=place, json=[schedule])
        client.request("POST", "/deployments/{id}/schedule", path_params=place, json={"min_runs": 1})
        planned = next(run for run in client.read_flow_runs() if run.deployment_id == deployment)
        # As a worker that takes it: the flow does not wait for its time.
        client.set_flow_run_state(planned.id, Pending(), force=True)
    name, seen = run_flow(given, planned, planned.parameters, return_type="result")
    expected = {**FILE, "prompts": {"source": "ours.jsonl", "max_prompts": 4}, "rollouts": {"timeout_s": 60}}
    assert seen == parse_config(expected, origin="test")
    assert name.startswith("nightly, Qwen3-0.6B, ")
