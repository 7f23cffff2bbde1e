"""Deployed by the documented commands on a Prefect server of its own, and run by the worker they start."""

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from stillhouse.config import load_config
from tests.deployments.processes import Prefect, assert_gone, wait_until
from tests.waiting import arguments

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3000)]

ROOT = Path(__file__).resolve().parents[2]
# Without on-policy distillation, which is the same code path; long enough to be ended in the middle, if wanted.
SFT_ALONE = ["on_policy.enabled=false", "evaluation.enabled=false", "runtime.training_deployment=run-stage/cpu"]
NO_RAY = ["runtime.launcher=ray", "runtime.ray_address=http://127.0.0.1:1"]


@pytest.fixture(scope="module")
def deployed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Yield a Prefect server after `make deploy`."""
    with Prefect(tmp_path_factory.mktemp("prefect"), PREFECT_SERVER_UI_ENABLED="false") as prefect:
        prefect.deploy("all")
        prefect.tool("python", "deployments/automations.py")
        yield prefect


@pytest.fixture(scope="module")
def worker(deployed: Any) -> Iterator[Any]:
    with deployed.worker() as worker:
        yield worker


def _submit(deployed: Any, name: str, *overrides: str) -> str:
    """Return a run of the deployment with the smoke config, in this server's store; the flow run's id."""
    config = load_config(ROOT / "configs" / "smoke.yaml", [f"runtime.store={deployed.folder / 'store'}", *overrides])
    run_id: str = deployed.submit(name, config.model_dump(mode="json"))
    return run_id


def _children(deployed: Any, run_id: str) -> list[dict[str, Any]]:
    """Return the flow runs that another one waits for."""
    children: list[dict[str, Any]] = deployed.post(
        "flow_runs/filter", {"flow_runs": {"parent_flow_run_id": {"any_": [run_id]}}}
    )
    return children


def _flow_process(worker: Any, run_id: str) -> psutil.Process | None:
    """Return the process of a flow run below the worker, which the worker names in its environment."""
    for process in worker.family():
        with suppress(psutil.Error):
            environment = process.environ()
            if run_id in {environment.get("PREFECT__FLOW_RUN_ID"), environment.get("PREFECT_FLOW_RUN_ID")}:
                return process
    return None


def test_a_schedule_makes_runs(deployed: Any) -> None:
    """Prefect 3.8 cannot insert them with SQLAlchemy 2.1, and says so in the server's log alone."""
    wanted = {"deployments": {"name": {"any_": ["demo-distill"]}}}
    runs = wait_until(lambda: deployed.post("flow_runs/filter", wanted), "the scheduler makes runs of demo-distill")
    assert all(run["auto_scheduled"] and run["parameters"]["config"] for run in runs)


def test_deploying_again_adds_no_schedule_and_no_automation_and_leaves_off_what_was_switched_off(deployed: Any) -> None:
    automations = deployed.post("automations/filter", {})
    switched_off = next(known for known in automations if "train-sft/demo " in known["name"])
    httpx.patch(
        f"{deployed.api}/automations/{switched_off['id']}", json={"enabled": False}, timeout=60, auth=deployed.auth
    ).raise_for_status()
    assert deployed.tool("python", "deployments/automations.py").count(": unchanged") == len(automations)
    changed = deployed.tool("python", "deployments/automations.py", "--pending-minutes", "45")
    assert changed.count(": updated") == 1
    after = {found["name"]: found["enabled"] for found in deployed.post("automations/filter", {})}
    assert after == {known["name"]: known["name"] != switched_off["name"] for known in automations}

    assert "there already" in deployed.tool("python", "deployments/pools.py")
    again = deployed.tool("python", "-m", "deployments.deploy", "demo").splitlines()
    assert len(again) == 8
    assert all(line.endswith(": unchanged") for line in again)
    assert len(deployed.get("deployments/name/distill/demo-distill")["schedules"]) == 1


def test_a_wrong_value_is_refused_before_a_run_is_created(deployed: Any) -> None:
    deployment = deployed.get("deployments/name/distill/smoke-distill")
    config = {**deployment["parameters"]["config"], "sft": {"learning_rate": 0.0}}
    body = {"parameters": {"config": config}, "state": {"type": "SCHEDULED"}}
    answer = httpx.post(
        f"{deployed.api}/deployments/{deployment['id']}/create_flow_run", json=body, timeout=60, auth=deployed.auth
    )
    assert answer.status_code == 409
    assert "learning_rate" in answer.text


def test_a_worker_generates_and_the_new_dataset_starts_the_training_of_that_config(deployed: Any, worker: Any) -> None:
    run = _submit(deployed, "generate/smoke-generate", *SFT_ALONE)
    assert deployed.ended(run)["type"] == "COMPLETED"
    training = deployed.get("deployments/name/train-sft/smoke-train-sft")["id"]
    wanted = {"flow_runs": {"deployment_id": {"any_": [training]}}}
    (started,) = wait_until(lambda: deployed.post("flow_runs/filter", wanted), "the automation starts the training")
    assert started["parameters"] == deployed.get(f"flow_runs/{run}")["parameters"]

    # Which hands its training to a flow run of another deployment, by the config.
    assert deployed.ended(started["id"])["type"] == "COMPLETED"
    (child,) = _children(deployed, started["id"])
    assert child["state_type"] == "COMPLETED"
    assert child["deployment_id"] == deployed.get("deployments/name/run-stage/cpu")["id"]
    (manifest,) = (deployed.folder / "store").glob("artifacts/sft/*/manifest.json")
    assert json.loads(manifest.read_bytes())["artifact"]["facts"]["steps"] > 0

    # What one has trained no other trains again, wherever it would.
    again = _submit(deployed, "train-sft/smoke-train-sft", *SFT_ALONE)
    assert deployed.ended(again)["type"] == "COMPLETED"
    assert _children(deployed, again) == []


def test_shards_trainings_and_evaluations_of_a_run_are_made_by_flow_runs_of_another_deployment(
    deployed: Any, worker: Any
) -> None:
    elsewhere = ["runtime.training_deployment=run-stage/cpu", "runtime.rollout_deployment=run-stage/cpu"]
    run = _submit(deployed, "distill/smoke-distill", *elsewhere, "on_policy.enabled=false", "rollouts.temperature=0.9")
    assert deployed.ended(run)["type"] == "COMPLETED"
    children = _children(deployed, run)
    assert {child["state_type"] for child in children} == {"COMPLETED"}
    stages = Counter(tag for child in children for tag in child["tags"] if tag in {"rollouts", "sft", "evaluation"})
    # 20 prompts to a shard; base, student and the embedded teacher.
    assert stages == {"rollouts": 2, "sft": 1, "evaluation": 3}


@pytest.mark.parametrize("end", ["cancelled", "killed"])
def test_a_training_elsewhere_ends_with_the_run_that_waits_for_it(deployed: Any, worker: Any, end: str) -> None:
    parent = _submit(
        deployed, "train-sft/smoke-train-sft", *SFT_ALONE, "sft.num_epochs=500", f"sft.learning_rate=0.00{len(end)}"
    )
    (child,) = wait_until(lambda: _children(deployed, parent), "the parent starts its child")
    process = wait_until(lambda: _flow_process(worker, child["id"]), "the child's process")
    training = wait_until(
        lambda: [each for each in process.children(recursive=True) if "stillhouse.training" in arguments(each)],
        "the training's process",
    )
    if end == "cancelled":
        deployed.post(f"flow_runs/{parent}/set_state", {"state": {"type": "CANCELLING"}})
    else:
        wait_until(lambda: _flow_process(worker, parent), "the parent's process").kill()
    assert deployed.ended(parent)["type"] == {"cancelled": "CANCELLED", "killed": "CRASHED"}[end]
    state = deployed.ended(child["id"])
    assert state["type"] in {"CANCELLED", "CRASHED"}, state
    assert_gone([process, *training])


def test_a_training_that_fails_elsewhere_is_the_failure_of_its_parent_with_the_reason(
    deployed: Any, worker: Any
) -> None:
    run = _submit(deployed, "train-sft/smoke-train-sft", *SFT_ALONE, "sft.learning_rate=0.004", *NO_RAY)
    state = deployed.ended(run)
    assert state["type"] == "FAILED"
    assert "run-stage/cpu" in state["message"]
