"""Two nights of a deployment on a team's servers: the machine dies in the first, the second finds new prompts."""

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Any, Final

import httpx
import psutil
import pytest

from benchmarks.shop_teacher import append_prompts, shop_teacher
from benchmarks.simulated_provider import SimulatedProvider
from stillhouse.embedded.shop import draw_stories

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

ROOT: Final = Path(__file__).resolve().parents[3]
TOOL: Final = [sys.executable, "-m", "tasks.environment"]
"""As the Makefile starts what talks to Prefect."""
NUM_STORIES, NUM_NEW = 300, 24
HELD_OUT: Final = 0.35
FINAL: Final = {"COMPLETED", "FAILED", "CRASHED", "CANCELLED"}


def wait_until(condition: Callable[[], Any], what: str, timeout_s: float = 1200.0) -> Any:
    deadline = time.monotonic() + timeout_s
    while not (found := condition()):
        assert time.monotonic() < deadline, f"not within {timeout_s:.0f} s: {what}"
        time.sleep(0.2)
    return found


class Prefect:
    """The server's API as far as it is asked here."""

    def __init__(self, url: str) -> None:
        self.url = url

    def post(self, path: str, body: dict[str, Any]) -> Any:
        return httpx.post(f"{self.url}/api/{path}", json=body, timeout=60).raise_for_status().json()

    def get(self, path: str) -> Any:
        return httpx.get(f"{self.url}/api/{path}", timeout=60).raise_for_status().json()

    def runs(self, deployment_id: str) -> list[dict[str, Any]]:
        """Of a deployment, but for those that its schedule has made; oldest first."""
        found = self.post("flow_runs/filter", {"flow_runs": {"deployment_id": {"any_": [deployment_id]}}})
        return sorted((run for run in found if not run["auto_scheduled"]), key=lambda run: str(run["created"]))

    def ended(self, run_id: str) -> dict[str, Any]:
        """The final state of a flow run."""
        wait_until(lambda: self.get(f"flow_runs/{run_id}")["state_type"] in FINAL, f"the end of flow run {run_id}")
        state: dict[str, Any] = self.get(f"flow_runs/{run_id}")["state"]
        return state


@contextmanager
def _worker(env: dict[str, str], log: Path) -> Iterator[psutil.Process]:
    """A worker of the pool `cpu`, as `make worker-cpu` starts it; it ends with everything below it, as a machine."""
    with log.open("ab") as out:
        started = subprocess.Popen(
            [*TOOL, "prefect", "worker", "start", "--pool", "cpu"],
            cwd=ROOT,
            env=env,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    process = psutil.Process(started.pid)
    try:
        yield process
    finally:
        _kill(process)
        started.wait()


def _kill(process: psutil.Process) -> None:
    with suppress(psutil.NoSuchProcess):
        for one in [process, *process.children(recursive=True)]:
            with suppress(psutil.NoSuchProcess):
                one.kill()


def _config(prompts: Path, store: Path, teacher: str, mlflow: str) -> dict[str, Any]:
    return {
        "prompts": {"source": str(prompts), "held_out_fraction": 0.2, "verifier": "numeric"},
        "teacher": {"model": "simulated", "base_url": teacher},
        "rollouts": {"max_tokens": 48, "max_turns": 6},
        "tools": {"builtin": ["calculator"]},
        "dataset": {"validation_fraction": 0.0},
        "student": {"parameters": "full", "dtype": "float32", "max_length": 512},
        "sft": {
            "num_epochs": 6,
            "batch_size": 16,
            "learning_rate": 5e-4,
            "schedule": "linear",
            "checkpoint_every_steps": 5,
        },
        "on_policy": {"enabled": False},
        "evaluation": {"max_tokens": 48, "max_turns": 6},
        "promotion": {"enabled": True, "start_from_champion": True, "min_prompts": 80},
        "tracking": {"register_as": "shop", "uri": mlflow},
        "runtime": {
            "store": str(store),
            "api_key_env": "TEACHER_KEY",
            "num_threads": 1,
            "device": "cpu",
            # A loaded machine is slow enough for a request to be sent twice.
            "hedge": False,
        },
    }


def test_a_night_whose_machine_died_is_run_again_and_the_next_asks_of_new_prompts_alone(
    servers: Any, postgres: Callable[[str], str], page: Any, tmp_path: Path
) -> None:
    # Nothing of the surrounding session's Prefect.
    env = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    env |= {
        "PREFECT_HOME": str(tmp_path / "prefect"),
        "PREFECT_SERVER_DATABASE_CONNECTION_URL": postgres("prefect").replace("postgresql:", "postgresql+asyncpg:"),
        "PREFECT_FLOWS_HEARTBEAT_FREQUENCY": "30",
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        "TEACHER_KEY": "secret",
        "OMP_NUM_THREADS": "1",
    }
    database = postgres("mlflow").replace("postgresql:", "postgresql+psycopg:")
    prefect = Prefect(servers.start_http("prefect", [*TOOL, "prefect", "server", "start"], "/api/health", env))
    files = ["--backend-store-uri", database, "--artifacts-destination", str(tmp_path / "files")]
    mlflow = servers.start_http("mlflow", [*TOOL, "mlflow", "server", "--workers", "1", *files], "/health", env)
    env |= {"PREFECT_API_URL": f"{prefect.url}/api"}
    for command in (
        ["python", "deployments/pools.py"],
        ["prefect", "--no-prompt", "deploy", "--all", "--prefect-file", "deployments/prefect.yaml"],
        ["python", "deployments/automations.py"],
    ):
        subprocess.run([*TOOL, *command], cwd=ROOT, env=env, check=True, timeout=1200)

    stories = list(islice(draw_stories(random.Random(7), reserved=True), NUM_STORIES + NUM_NEW))
    prompts, store = tmp_path / "prompts.jsonl", tmp_path / "store"
    asked: list[str] = []
    append_prompts(prompts, stories[:NUM_STORIES])
    deployment = prefect.get("deployments/name/distill/smoke")["id"]
    with SimulatedProvider(shop_teacher(stories, asked)) as teacher:
        config = _config(prompts, store, teacher.url, mlflow)
        body = {"parameters": {"config": config}}
        httpx.patch(f"{prefect.url}/api/deployments/{deployment}", json=body, timeout=60).raise_for_status()

        with _worker(env, tmp_path / "worker.log") as worker:
            run = _started_from_its_form(page, prefect, deployment)
            wait_until(lambda: list(store.glob("training/sft-*/checkpoints/*")), "a checkpoint of the training")
            _kill(worker)
        num_asked = len(asked)
        crashed = prefect.ended(run["id"])
        assert crashed["type"] == "CRASHED"
        assert "No heartbeat" in crashed["message"]

        with _worker(env, tmp_path / "worker.log"):
            body = {"parameters": run["parameters"]}
            again = prefect.post(f"deployments/{deployment}/create_flow_run", body)["id"]
            assert prefect.ended(again)["type"] == "COMPLETED"
            # The evaluation alone had asked nothing yet: of the prompts held out.
            assert not set(asked[num_asked:]) & set(asked[:num_asked])
            num_asked = len(asked)
            assert _resumed_from(store) > 0
            assert _champion(mlflow) == 1

            append_prompts(prompts, stories[NUM_STORIES:])
            second = prefect.post(f"deployments/{deployment}/create_flow_run", body)["id"]
            assert prefect.ended(second)["type"] == "COMPLETED"
    new = stories[NUM_STORIES:]
    assert set(asked[num_asked:]) <= {story.text for story in new}
    assert len(asked) > num_asked
    statuses = {run.info.status for run in _client(mlflow).search_runs(["1"])}
    assert statuses <= {"FINISHED", "KILLED"}


def _started_from_its_form(page: Any, prefect: Prefect, deployment: str) -> dict[str, Any]:
    """Opens the deployment in Prefect's pages, changes a field and submits; the flow run."""
    page.goto(f"{prefect.url}/deployments/deployment/{deployment}/run", wait_until="commit")
    named = page.locator("label", has=page.get_by_text("Held out fraction (Optional)", exact=True)).first
    around = "xpath=ancestor::div[contains(concat(' ', @class, ' '), ' schema-form-property ')][1]"
    named.locator(around).locator("input").first.fill(str(HELD_OUT))
    page.get_by_role("button", name="Submit").click()
    (run,) = wait_until(lambda: prefect.runs(deployment), "the run is there")
    assert run["parameters"]["config"]["prompts"]["held_out_fraction"] == HELD_OUT
    return run


def _resumed_from(store: Path) -> int:
    """The step at which the one training of the store went on."""
    (manifest,) = store.glob("artifacts/sft/*/manifest.json")
    step: int = json.loads(manifest.read_bytes())["artifact"]["facts"]["resumed_from_step"]
    return step


def _client(mlflow: str) -> Any:
    from mlflow import MlflowClient

    return MlflowClient(mlflow)


def _champion(mlflow: str) -> int:
    return int(_client(mlflow).get_registered_model("shop").aliases["champion"])
