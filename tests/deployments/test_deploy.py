"""Deployed by the documented commands on a Prefect server of its own, and run by the worker they start."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from prefect.flows import load_flow_from_entrypoint
from prefect.utilities.callables import parameter_schema

from stillhouse.config import load_config
from tasks.deploying import read_deployments

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3000)]

ROOT = Path(__file__).resolve().parents[2]
ENTRIES = read_deployments(ROOT / "deployments" / "prefect.yaml", ROOT)
FINAL = {"COMPLETED", "FAILED", "CRASHED", "CANCELLED"}
# Without on-policy distillation, which is the same code path; long enough to be ended in the middle, if wanted.
SFT_ALONE = ["on_policy.enabled=false", "evaluation.enabled=false", "runtime.training_deployment=run-stage/cpu"]


def wait_until(condition: Callable[[], Any], what: str, timeout_s: float = 900.0) -> Any:
    """What `condition` returns once it is true."""
    deadline = time.monotonic() + timeout_s
    while not (found := condition()):
        assert time.monotonic() < deadline, f"not within {timeout_s:.0f} s: {what}"
        time.sleep(0.2)
    return found


class Site:
    """A Prefect server and what is deployed on it."""

    def __init__(self, api: str, env: dict[str, str], store: Path) -> None:
        self.api, self.env, self.store = api, env, store

    def tool(self, *command: str) -> str:
        """What a command says that is started from the project's root as the Makefile does."""
        whole = [sys.executable, "-m", "tasks.environment", *command]
        done = subprocess.run(whole, cwd=ROOT, env=self.env, capture_output=True, text=True, timeout=1500, check=False)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        return done.stdout

    def get(self, path: str) -> Any:
        return self._asked("GET", path, None)

    def post(self, path: str, body: dict[str, Any]) -> Any:
        return self._asked("POST", path, body)

    def _asked(self, method: str, path: str, body: dict[str, Any] | None) -> Any:
        for _ in range(60):
            answer = httpx.request(method, f"{self.api}/{path}", json=body, timeout=60)
            # SQLite under a burst of writes.
            if answer.status_code != 503:
                return answer.raise_for_status().json()
            time.sleep(1.0)
        pytest.fail(f"{path}: 503 for a minute")

    def submit(self, name: str, *overrides: str) -> str:
        """A run of the deployment with the smoke config, in this site's store; the flow run's id."""
        config = load_config(ROOT / "configs" / "smoke.yaml", [f"runtime.store={self.store}", *overrides])
        deployment = self.get(f"deployments/name/{name}")
        body = {"parameters": {"config": config.model_dump(mode="json")}, "state": {"type": "SCHEDULED"}}
        run_id: str = self.post(f"deployments/{deployment['id']}/create_flow_run", body)["id"]
        return run_id

    def state(self, run_id: str) -> dict[str, Any]:
        state: dict[str, Any] = self.get(f"flow_runs/{run_id}")["state"]
        return state

    def ended(self, run_id: str) -> dict[str, Any]:
        """The final state of a flow run."""
        wait_until(lambda: self.state(run_id)["type"] in FINAL, f"the end of flow run {run_id}")
        return self.state(run_id)

    def child_of(self, run_id: str) -> str:
        """The flow run that another one waits for."""
        wanted = {"flow_runs": {"parent_flow_run_id": {"any_": [run_id]}}}
        (child,) = wait_until(lambda: self.post("flow_runs/filter", wanted), "the parent starts its child")
        found: str = child["id"]
        return found


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("site")
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    # Nothing of the surrounding session's Prefect: neither its server nor its profile.
    env = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    env |= {
        "PREFECT_HOME": str(folder / "home"),
        "PREFECT_API_URL": f"http://127.0.0.1:{port}/api",
        "PREFECT_SERVER_UI_ENABLED": "false",
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-m", "tasks.environment", "prefect", "server", "start", "--port", str(port)]
    with (folder / "server.log").open("wb") as log:
        server = subprocess.Popen(command, cwd=ROOT, env=env, stdout=log, stderr=log, start_new_session=True)

    def healthy() -> bool:
        assert server.poll() is None, (folder / "server.log").read_text()[-3000:]
        with suppress(httpx.HTTPError):
            return httpx.get(f"{env['PREFECT_API_URL']}/health", timeout=5).is_success
        return False

    try:
        wait_until(healthy, "the server answers")
        yield Site(env["PREFECT_API_URL"], env, folder / "store")
    finally:
        with suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)
        server.wait()


@pytest.fixture(scope="module")
def deployed(site: Site) -> Site:
    """The site after `make deploy`."""
    site.tool("python", "deployments/pools.py")
    site.tool("prefect", "--no-prompt", "deploy", "--all", "--prefect-file", "deployments/prefect.yaml")
    site.tool("python", "deployments/automations.py")
    return site


@pytest.fixture(scope="module")
def worker(deployed: Site, tmp_path_factory: pytest.TempPathFactory) -> Iterator[psutil.Process]:
    """A worker of the pool `cpu`, started as `make worker-cpu` does."""
    command = [sys.executable, "-m", "tasks.environment", "prefect", "worker", "start", "--pool", "cpu"]
    with (tmp_path_factory.mktemp("worker") / "worker.log").open("wb") as log:
        started = subprocess.Popen(command, cwd=ROOT, env=deployed.env, stdout=log, stderr=log, start_new_session=True)
    process = psutil.Process(started.pid)
    yield process
    for one in [*process.children(recursive=True), process]:
        with suppress(psutil.NoSuchProcess):
            one.kill()
    started.wait()


def _flow_process(worker: psutil.Process, run_id: str) -> psutil.Process | None:
    """The process of a flow run below the worker, which the worker names in its environment."""
    for process in worker.children(recursive=True):
        with suppress(psutil.Error):
            environment = process.environ()
            if run_id in {environment.get("PREFECT__FLOW_RUN_ID"), environment.get("PREFECT_FLOW_RUN_ID")}:
                return process
    return None


def test_every_deployment_has_its_form_its_config_and_its_schedules(deployed: Site) -> None:
    forms: dict[str, Any] = {}
    for entry in ENTRIES:
        flow = load_flow_from_entrypoint(entry["entrypoint"], use_placeholder_flow=False)
        there = deployed.get(f"deployments/name/{flow.name}/{entry['name']}")
        form = forms.setdefault(flow.name, parameter_schema(flow).model_dump_for_openapi())
        assert there["entrypoint"] == entry["entrypoint"]
        assert there["parameters"] == entry.get("parameters", {})
        # The server leaves out what is empty.
        assert {"definitions": {}, **there["parameter_openapi_schema"]} == {"definitions": {}, **form}
        assert there["enforce_parameter_schema"] is True
        assert there["work_pool_name"] == entry["work_pool"]["name"]
        assert there["job_variables"] == entry["work_pool"].get("job_variables", {})
        assert there["tags"] == entry["tags"]
        wanted = [(s["slug"], s["cron"], s["timezone"], s.get("active", True)) for s in entry.get("schedules", ())]
        found = [(s["slug"], s["schedule"]["cron"], s["schedule"]["timezone"], s["active"]) for s in there["schedules"]]
        assert found == wanted
        if limit := entry.get("concurrency_limit"):
            assert there["global_concurrency_limit"]["limit"] == limit["limit"]
            assert there["concurrency_options"]["collision_strategy"] == limit["collision_strategy"]


def test_a_schedule_makes_runs(deployed: Site) -> None:
    wanted = {"deployments": {"name": {"any_": ["demo"]}}, "flows": {"name": {"any_": ["distill"]}}}
    runs = wait_until(lambda: deployed.post("flow_runs/filter", wanted), "the scheduler makes runs of distill/demo")
    assert all(run["auto_scheduled"] and run["parameters"]["config"] for run in runs)


def test_deploying_again_adds_no_schedule_and_no_automation_and_leaves_off_what_was_switched_off(
    deployed: Site,
) -> None:
    known = deployed.post("automations/filter", {})
    assert len(known) == 6
    switched_off = next(one for one in known if "train-sft/demo" in one["name"])
    httpx.patch(
        f"{deployed.api}/automations/{switched_off['id']}", json={"enabled": False}, timeout=60
    ).raise_for_status()
    assert deployed.tool("python", "deployments/automations.py").count(": unchanged") == 6
    changed = deployed.tool("python", "deployments/automations.py", "--pending-minutes", "45")
    assert changed.count(": updated") == 1
    after = {one["name"]: one["enabled"] for one in deployed.post("automations/filter", {})}
    assert after == {one["name"]: one["name"] != switched_off["name"] for one in known}

    assert "there already" in deployed.tool("python", "deployments/pools.py")
    deployed.tool("prefect", "--no-prompt", "deploy", "-n", "demo", "--prefect-file", "deployments/prefect.yaml")
    assert len(deployed.get("deployments/name/distill/demo")["schedules"]) == 1


def test_a_wrong_value_is_refused_before_a_run_is_created(deployed: Site) -> None:
    deployment = deployed.get("deployments/name/distill/smoke")
    config = {**deployment["parameters"]["config"], "sft": {"learning_rate": 0.0}}
    body = {"parameters": {"config": config}, "state": {"type": "SCHEDULED"}}
    answer = httpx.post(f"{deployed.api}/deployments/{deployment['id']}/create_flow_run", json=body, timeout=60)
    assert answer.status_code == 409
    assert "learning_rate" in answer.text


def test_a_worker_generates_and_the_new_dataset_starts_the_training_of_that_config(
    deployed: Site, worker: psutil.Process
) -> None:
    run = deployed.submit("generate/smoke", *SFT_ALONE)
    assert deployed.ended(run)["type"] == "COMPLETED"
    training = deployed.get("deployments/name/train-sft/smoke")["id"]
    wanted = {"flow_runs": {"deployment_id": {"any_": [training]}}}
    (started,) = wait_until(lambda: deployed.post("flow_runs/filter", wanted), "the automation starts the training")
    assert started["parameters"] == deployed.get(f"flow_runs/{run}")["parameters"]

    # Which hands its training to a flow run of another deployment, by the config.
    assert deployed.ended(started["id"])["type"] == "COMPLETED"
    child = deployed.get(f"flow_runs/{deployed.child_of(started['id'])}")
    assert child["state"]["type"] == "COMPLETED"
    assert child["deployment_id"] == deployed.get("deployments/name/run-stage/cpu")["id"]
    (manifest,) = deployed.store.glob("artifacts/sft/*/manifest.json")
    assert json.loads(manifest.read_bytes())["artifact"]["facts"]["steps"] > 0

    # What one has trained no other trains again, wherever it would.
    again = deployed.submit("train-sft/smoke", *SFT_ALONE)
    assert deployed.ended(again)["type"] == "COMPLETED"
    assert deployed.post("flow_runs/filter", {"flow_runs": {"parent_flow_run_id": {"any_": [again]}}}) == []


@pytest.mark.parametrize("end", ["cancelled", "killed"])
def test_a_training_elsewhere_ends_with_the_run_that_waits_for_it(
    deployed: Site, worker: psutil.Process, end: str
) -> None:
    parent = deployed.submit("train-sft/smoke", *SFT_ALONE, "sft.num_epochs=500", f"sft.learning_rate=0.00{len(end)}")
    child = deployed.child_of(parent)
    process = wait_until(lambda: _flow_process(worker, child), "the child's process")
    training = wait_until(
        lambda: [one for one in process.children(recursive=True) if "stillhouse.training" in one.cmdline()],
        "the training's process",
    )
    if end == "cancelled":
        deployed.post(f"flow_runs/{parent}/set_state", {"state": {"type": "CANCELLING"}})
    else:
        wait_until(lambda: _flow_process(worker, parent), "the parent's process").kill()
    assert deployed.ended(parent)["type"] == {"cancelled": "CANCELLED", "killed": "CRASHED"}[end]
    state = deployed.ended(child)
    assert state["type"] in {"CANCELLED", "CRASHED"}, state
    _, alive = psutil.wait_procs([process, *training], timeout=120)
    assert not alive


def test_a_training_that_fails_elsewhere_is_the_failure_of_its_parent_with_the_reason(
    deployed: Site, worker: psutil.Process
) -> None:
    run = deployed.submit("train-sft/smoke", *SFT_ALONE, "sft.learning_rate=0.004", "runtime.launcher=kubernetes")
    state = deployed.ended(run)
    assert state["type"] == "FAILED"
    assert "run-stage/cpu" in state["message"]
