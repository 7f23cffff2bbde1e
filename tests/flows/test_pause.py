"""A run of a deployment that somebody pauses on its page, and resumes there."""

import threading
import time
from pathlib import Path
from uuid import UUID

import pytest
from prefect import flow
from prefect.client.orchestration import get_client
from prefect.exceptions import Pause
from prefect.flow_engine import run_flow
from prefect.runtime import flow_run
from prefect.states import Suspended

from flows.generate import generate
from stillhouse.config import TrackingConfig
from stillhouse.store.records import write_jsonl
from stillhouse.tracking import start_run
from tasks.run.interruption import raise_if_paused
from tasks.run.progress_artifact import ProgressArtifacts
from tests.flows.conftest import KEY_VARIABLE
from tests.provider import ReceivedRequest, Reply, SimulatedProvider, completion
from tests.waiting import until

NUM_PROMPTS = 24
NUM_AT_ONCE = 4


class SlowTeacher:
    """Answers as many prompts as may be asked at once, and each of the others after the time in `delay_s`."""

    def __init__(self) -> None:
        self.delay_s = 6.0

    def __call__(self, request: ReceivedRequest) -> Reply:
        return Reply(completion("42"), delay_s=self.delay_s if request.index >= NUM_AT_ONCE else 0.0)


def _pause(run_id: UUID) -> None:
    """Do as the page's button."""
    with get_client(sync_client=True) as client:
        state = Suspended(timeout_seconds=3600)
        client.set_flow_run_state(run_id, state, force=True)


def test_a_run_paused_amid_its_rollouts_lets_answers_in_flight_come_in_and_resumed_pays_for_nothing_twice(
    tmp_path: Path,
) -> None:
    from mlflow import MlflowClient

    write_jsonl(tmp_path / "prompts.jsonl", [{"prompt": f"What is {n} + 1?"} for n in range(NUM_PROMPTS)])
    teacher = SlowTeacher()
    with SimulatedProvider(teacher) as provider, get_client(sync_client=True) as client:
        config = {
            "prompts": {"source": str(tmp_path / "prompts.jsonl"), "held_out_fraction": 0.0},
            "teacher": {"model": "simulated", "base_url": provider.url},
            "dataset": {"validation_fraction": 0.0, "filters": {}},
            "runtime": {
                "store": str(tmp_path / "runs"), "api_key_env": KEY_VARIABLE, "num_threads": 1, "hedge": False,
                "concurrency": NUM_AT_ONCE, "max_concurrency": NUM_AT_ONCE,
            },
        }  # fmt: skip
        deployment = client.create_deployment(client.create_flow(generate), name="paused")
        run_id = client.create_flow_run_from_deployment(deployment, parameters={"config": config}).id

        def person() -> None:
            until(lambda: provider.in_flight == NUM_AT_ONCE and len(provider.ledger) > NUM_AT_ONCE)
            _pause(run_id)

        asking = threading.Thread(target=person)
        asking.start()
        with pytest.raises(Pause):
            run_flow(generate, client.read_flow_run(run_id))
        asking.join()
        assert client.read_flow_run(run_id).state_name == "Suspended"
        assert len(provider.ledger) < NUM_PROMPTS
        assert provider.num_billed == len(provider.ledger)
        mlflow = MlflowClient(f"sqlite:///{tmp_path / 'runs' / 'mlflow.db'}")
        (record,) = (run for run in mlflow.search_runs(["1"]) if run.info.run_name.startswith("paused, "))
        assert record.info.status == "SCHEDULED"

        teacher.delay_s = 0.0
        client.resume_flow_run(run_id)
        run_flow(generate, client.read_flow_run(run_id))
        assert len(provider.ledger) == provider.num_billed == NUM_PROMPTS
        assert mlflow.get_run(record.info.run_id).info.status == "FINISHED"


def test_a_run_that_is_deleted_on_its_page_saves_its_work_and_ends_as_a_paused_one(tmp_path: Path) -> None:
    record = start_run(TrackingConfig(enabled=False), tmp_path, "generate")

    @flow
    def deleted() -> None:
        with get_client(sync_client=True) as client, ProgressArtifacts(record, dict, every_s=0.01):
            time.sleep(0.5)
            raise_if_paused()
            client.request("DELETE", "/flow_runs/{id}", path_params={"id": flow_run.id})
            while True:
                raise_if_paused()
                time.sleep(0.01)

    with pytest.raises(Pause):
        deleted()
