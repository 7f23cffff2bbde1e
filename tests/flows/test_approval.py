"""The human gate on a real Prefect server: asked of a run that waits, and of one that is suspended and comes back."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from prefect import Flow, flow
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import State
from prefect.exceptions import Pause
from prefect.flow_engine import run_flow
from prefect.settings import PREFECT_API_URL, temporary_settings

from stillhouse.config import DistillConfig
from stillhouse.errors import NotApproved
from stillhouse.store.records import write_jsonl
from stillhouse.types import Artifact
from tasks.governance.approval import APPROVAL, require_approval
from tasks.publish import tracked

Gate = Callable[..., Flow[..., dict[str, Any]]]


def _config(store: Path, *, is_tracked: bool = False, **approval: Any) -> DistillConfig:
    return DistillConfig.model_validate(
        {
            "approval": {"enabled": True, **approval},
            "tracking": {"enabled": is_tracked},
            "runtime": {"store": str(store)},
        }
    )


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    """Return a flow that asks about a dataset and tells what it noted of the answer."""

    def make(question: str = "one", **options: Any) -> Flow[..., dict[str, Any]]:
        @flow(name="gate", persist_result=False)
        def asks() -> dict[str, Any]:
            with tracked(_config(tmp_path / "store", **options), "train-sft", (APPROVAL,)) as run:

                def fill(folder: Path) -> tuple[int, dict[str, Any]]:
                    return write_jsonl(folder / "rows.jsonl", [question]), {"kept": 1, "dropped": 2}

                dataset: Artifact = run.context.store.write("dataset", question, fill)
                require_approval(dataset, run)
                (stage,) = run.stages
                return {"told": stage.result.facts["reason"], "cached": stage.cached, "mlflow": run.record.run_id}

        return asks

    return make


@contextmanager
def _answering(**answer: str) -> Iterator[list[str]]:
    """Answer the next run that waits, as the page does; return what it was asked."""
    asked: list[str] = []

    def answer_it() -> None:
        with get_client(sync_client=True) as client:
            deadline = time.monotonic() + 120
            while time.monotonic() < deadline:
                for run in client.read_flow_runs():
                    keyset = run.state.state_details.run_input_keyset if run.state and run.state.is_paused() else None
                    if keyset is not None:
                        asked.append(_read_input(run.id, keyset["description"]))
                        client.resume_flow_run(run.id, run_input=answer)
                        return
                time.sleep(0.2)

    person = threading.Thread(target=answer_it)
    person.start()
    yield asked
    person.join()


def _read_input(flow_run_id: UUID, key: str) -> str:
    with get_client(sync_client=True) as client:
        return str(client.request("GET", f"/flow_runs/{flow_run_id}/input/{key}").json())


def _time_limits() -> list[str]:
    with get_client(sync_client=True) as client:
        return [automation.name for automation in client.read_automations()]


def test_a_direct_run_waits_for_the_answer_and_no_later_run_asks_again(gate) -> None:
    with _answering(decision="approve", reason="rows look right") as asked:
        first = gate()()
    assert (first["told"], first["cached"]) == ("rows look right", False)
    assert "1 rows kept, 2 dropped" in asked[0]
    assert "it is rejected" in asked[0]
    again = gate()()
    assert (again["told"], again["cached"]) == ("rows look right", True)
    assert _time_limits() == []


def test_a_rejected_dataset_ends_the_run_with_the_reason(gate) -> None:
    with _answering(decision="reject", reason="too many greetings"), pytest.raises(NotApproved) as failure:
        gate()()
    assert str(failure.value).startswith("the dataset of 1 rows was rejected: too many greetings. Nothing was trained")
    assert _time_limits() == []


@pytest.mark.slow
def test_resuming_without_an_answer_rejects(gate) -> None:
    with _answering(), pytest.raises(NotApproved, match="1440 minutes"):
        gate()()


def test_without_a_server_nobody_can_be_asked_and_it_is_rejected(gate) -> None:
    @flow
    def alone() -> None:
        with temporary_settings(restore_defaults={PREFECT_API_URL}):
            gate().fn()

    with pytest.raises(NotApproved, match="no Prefect server"):
        alone()


def test_a_run_of_a_deployment_gives_its_process_back_and_goes_on_from_the_answer(gate, tmp_path: Path) -> None:
    from mlflow import MlflowClient

    asks = gate(is_tracked=True)
    with get_client(sync_client=True) as client:
        deployment = client.create_deployment(client.create_flow(asks), name="gate")
        run_id = client.create_flow_run_from_deployment(deployment).id

        def state() -> State[Any]:
            found = client.read_flow_run(run_id).state
            assert found is not None
            return found

        with pytest.raises(Pause):
            run_flow(asks, client.read_flow_run(run_id))
        assert state().name == "Suspended"
        assert len(_time_limits()) == 1
        mlflow = MlflowClient(f"sqlite:///{tmp_path / 'store' / 'mlflow.db'}")
        (record,) = mlflow.search_runs(["1"])
        assert record.info.status == "SCHEDULED"

        client.resume_flow_run(run_id, run_input={"decision": "approve"})
        noted = run_flow(asks, client.read_flow_run(run_id))
        assert isinstance(noted, dict)
        assert (noted["told"], noted["mlflow"]) == ("no reason was given", record.info.run_id)
        assert state().is_completed()
        assert mlflow.get_run(record.info.run_id).info.status == "FINISHED"
        assert _time_limits() == []
