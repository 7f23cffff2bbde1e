"""Prefect and MLflow on loopback, a deployment served by a process of its own, and a browser to use them with."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

import httpx
import pytest

ROOT = Path(__file__).resolve().parents[3]
BIN = Path(sys.executable).parent

_SERVE = """
import sys
from pathlib import Path
from tasks.environment import set_defaults
set_defaults()
from prefect.types.entrypoint import EntrypointType
from flows.train_sft import train_sft
from stillhouse.config import load_config
config = load_config(Path("configs/smoke.yaml"), sys.argv[1:])
train_sft.serve(
    name="pages", parameters={"config": config.model_dump(mode="json")}, entrypoint_type=EntrypointType.MODULE_PATH
)
"""


def wait_until(condition: Callable[[], Any], what: str, timeout_s: float = 900.0) -> Any:
    """What `condition` returns once it is true."""
    deadline = time.monotonic() + timeout_s
    while not (found := condition()):
        assert time.monotonic() < deadline, f"not within {timeout_s:.0f} s: {what}"
        time.sleep(0.5)
    return found


@pytest.fixture(name="wait_until", scope="session")
def _wait_until() -> Callable[..., Any]:
    return wait_until


class Site(NamedTuple):
    """Where everything is."""

    prefect: str
    mlflow: str
    store: Path

    def post(self, path: str, body: dict[str, Any]) -> Any:
        return httpx.post(f"{self.prefect}/api/{path}", json=body, timeout=60).raise_for_status().json()

    def run(self, run_id: str) -> dict[str, Any]:
        found: dict[str, Any] = httpx.get(f"{self.prefect}/api/flow_runs/{run_id}", timeout=60).json()
        return found

    def state(self, run_id: str) -> str:
        return str(self.run(run_id)["state_name"])

    def states(self, run_id: str) -> list[dict[str, Any]]:
        """Oldest first."""
        found = httpx.get(f"{self.prefect}/api/flow_run_states/", params={"flow_run_id": run_id}, timeout=60).json()
        return sorted(found, key=lambda state: str(state["timestamp"]))

    def deployment(self) -> UUID | None:
        found = self.post("deployments/filter", {})
        return UUID(found[0]["id"]) if found else None

    def runs(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.post("flow_runs/filter", {})
        return found


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("site")
    prefect, mlflow = (f"http://127.0.0.1:{_free_port()}" for _ in range(2))
    env = {
        **os.environ,
        "PREFECT_HOME": str(folder / "prefect"),
        "PREFECT_API_URL": f"{prefect}/api",
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        "OMP_NUM_THREADS": "1",
    }
    (folder / "prefect").mkdir()
    place = Site(prefect, mlflow, folder / "store")
    config = [f"runtime.store={place.store}", f"tracking.uri={mlflow}", "approval.enabled=true"]
    database = [
        "--backend-store-uri",
        f"sqlite:///{folder}/mlflow.db",
        "--artifacts-destination",
        str(folder / "files"),
    ]
    with ExitStack() as stack:
        for name, command, url in [
            ("prefect", ["prefect", "server", "start", *_at(prefect)], f"{prefect}/api/health"),
            ("mlflow", ["mlflow", "server", "--workers", "1", *database, *_at(mlflow)], f"{mlflow}/health"),
        ]:
            whole = [str(BIN / command[0]), *command[1:]]
            stack.enter_context(_process(whole, env, folder / f"{name}.log"))
            wait_until(lambda url=url: _answers(url), f"{url} answers; see {folder / name}.log")
        stack.enter_context(_process([sys.executable, "-c", _SERVE, *config], env, folder / "serve.log"))
        wait_until(place.deployment, f"the deployment is there; see {folder / 'serve.log'}")
        yield place


@contextmanager
def _process(command: list[str], env: dict[str, str], log: Path) -> Iterator[None]:
    with log.open("wb") as out:
        # A session of its own, so that its children end with it.
        process = subprocess.Popen(command, cwd=ROOT, env=env, stdout=out, stderr=out, start_new_session=True)
    try:
        yield
    finally:
        for number in (signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError, subprocess.TimeoutExpired):
                os.killpg(process.pid, number)
                process.wait(30)
        process.wait()


def _at(url: str) -> list[str]:
    host, port = url.removeprefix("http://").split(":")
    return ["--host", host, "--port", port]


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def _answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=5).is_success
    except httpx.HTTPError:
        return False
