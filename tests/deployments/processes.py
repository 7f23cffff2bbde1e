"""Prefect, MLflow and workers on loopback, each a process of its own that can be killed."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any, Final, Self

import httpx
import psutil
import pytest

ROOT: Final = Path(__file__).resolve().parents[2]
TOOL: Final = [sys.executable, "-m", "tasks.server.environment"]
"""As the Makefile starts what talks to Prefect."""
FINAL: Final = {"COMPLETED", "FAILED", "CRASHED", "CANCELLED"}


def wait_until(condition: Callable[[], Any], what: str) -> Any:
    """Return what `condition` returns once it is true."""
    deadline = time.monotonic() + 1200
    while not (value := condition()):
        assert time.monotonic() < deadline, f"not within 20 minutes: {what}"
        time.sleep(0.1)
    return value


def assert_gone(family: Iterable[psutil.Process]) -> None:
    """Raise AssertionError unless all of these processes are gone, or will be soon."""
    _, alive = psutil.wait_procs(family, timeout=120)
    assert not alive, [process.cmdline() for process in alive]


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


class Launched:
    """A process in a session of its own. With the block it ends, and all that it started."""

    def __init__(self, command: Sequence[str], log: Path, **how: Any) -> None:
        self._log = log
        with log.open("ab") as out:
            self.process = psutil.Popen(command, stdout=out, stderr=out, start_new_session=True, **how)
        self._seen: set[psutil.Process] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def output(self) -> str:
        return self._log.read_text(encoding="utf-8", errors="replace")

    def family(self) -> list[psutil.Process]:
        """Return every process that it started, directly or not, with those that an earlier call found."""
        self._seen.update(self.process.children(recursive=True))
        return list(self._seen)

    def wait_until(self, condition: Callable[[], Any], what: str) -> None:
        def alive() -> Any:
            assert self.process.poll() is None, self.output[-4000:]
            return condition()

        wait_until(alive, f"{what}; see {self._log}")

    def finish(self) -> None:
        """Wait for the end, which is to be a good one."""
        assert self.process.wait(900) == 0, self.output[-4000:]

    def end(self, number: signal.Signals) -> int:
        """Send the signal and see to it that neither the process nor what it started stays; the exit code."""
        family = self.family()
        self.process.send_signal(number)
        code: int = self.process.wait(300)
        assert_gone(family)
        return code

    def kill(self) -> None:
        with suppress(psutil.NoSuchProcess):
            self.family()
        # Some below it have sessions of their own, others have lost the parent that led to them.
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        for process in self._seen:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self.process.wait()


class Server:
    """A server that can be killed and started again at the same address."""

    def __init__(self, command: list[str], health: str, folder: Path, env: dict[str, str]) -> None:
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        self._command = [*TOOL, *command, "--host", "127.0.0.1", "--port", str(port)]
        self._health, self._log, self._env = self.url + health, folder / f"server-{port}.log", env
        self._launched: Launched | None = None

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self) -> None:
        self._launched = Launched(self._command, self._log, env=self._env, cwd=ROOT)
        self._launched.wait_until(self._answers, f"{self._health} answers")

    def kill(self) -> None:
        if self._launched is not None:
            self._launched.kill()

    def _answers(self) -> bool:
        with suppress(httpx.HTTPError):
            return httpx.get(self._health, timeout=5).is_success
        return False


class Prefect(Server):
    """A Prefect server, what it is asked, and the processes that talk to it: they get `env`, as the server does."""

    def __init__(self, folder: Path, *options: str, database: str = "", **env: str) -> None:
        # Nothing of the surrounding session's Prefect: neither its server nor its profile.
        outside = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
        env = {**outside, "PREFECT_HOME": str(folder / "prefect"), "OMP_NUM_THREADS": "1", **env}
        url = database.replace("postgresql:", "postgresql+asyncpg:")
        server_env = env | ({"PREFECT_SERVER_DATABASE_CONNECTION_URL": url} if url else {})
        super().__init__(["python", "-m", "tasks.server.prefect_server", *options], "/api/ready", folder, server_env)
        self.folder, self.api = folder, f"{self.url}/api"
        self.env = {**env, "PREFECT_API_URL": self.api}
        self._worker_numbers = count()

    @property
    def login(self) -> str:
        """Return NAME:PASSWORD, which the server made when it first started."""
        return (self.folder / "prefect" / "server-login").read_text()

    @property
    def auth(self) -> httpx.BasicAuth:
        return httpx.BasicAuth(*self.login.split(":"))

    def log_in(self, page: Any) -> None:
        """As a person does whom the server's pages ask for the password; one login is good for all of them."""
        password = page.locator("input[type=password]")
        password.fill(self.login)
        page.get_by_role("button", name="Login").click()
        password.wait_for(state="hidden")

    def launch(self, command: Sequence[str], log: Path, cwd: Path = ROOT) -> Launched:
        return Launched(command, log, env=self.env, cwd=cwd)

    def worker(self, pool: str = "cpu") -> Launched:
        """Return a worker of a pool, started as `make worker-cpu` does."""
        log = self.folder / f"worker-{next(self._worker_numbers)}.log"
        return self.launch([*TOOL, "prefect", "worker", "start", "--pool", pool], log)

    def tool(self, *command: str) -> str:
        """Return what a command says that is started from the project's root as the Makefile does."""
        done = subprocess.run(
            [*TOOL, *command], cwd=ROOT, env=self.env, capture_output=True, text=True, timeout=1500, check=False
        )
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        return done.stdout

    def deploy(self, *configs: str) -> None:
        """Make the pools and the deployments of these configs, as `make deploy` does."""
        self.tool("python", "deployments/pools.py")
        self.tool("python", "-m", "deployments.deploy", *configs)

    def get(self, path: str) -> Any:
        return self._request("GET", path, None)

    def post(self, path: str, body: dict[str, Any]) -> Any:
        return self._request("POST", path, body)

    def _request(self, method: str, path: str, body: dict[str, Any] | None) -> Any:
        for _ in range(60):
            answer = httpx.request(method, f"{self.api}/{path}", json=body, timeout=60, auth=self.auth)
            # SQLite under a burst of writes.
            if answer.status_code != 503:
                return answer.raise_for_status().json()
            time.sleep(1.0)
        pytest.fail(f"{path}: 503 for a minute")

    def submit(self, deployment: str, config: dict[str, Any]) -> str:
        """Return a run of the deployment FLOW/NAME with this config, for a worker; the flow run's id."""
        deployment_id = self.get(f"deployments/name/{deployment}")["id"]
        run = self.post(f"deployments/{deployment_id}/create_flow_run", {"parameters": {"config": config}})
        return str(run["id"])

    def state(self, run_id: str) -> dict[str, Any]:
        state: dict[str, Any] = self.get(f"flow_runs/{run_id}")["state"]
        return state

    def ended(self, run_id: str) -> dict[str, Any]:
        """Return the final state of a flow run."""
        wait_until(lambda: self.state(run_id)["type"] in FINAL, f"the end of flow run {run_id}")
        return self.state(run_id)


def mlflow_server(folder: Path, database: str = "", files: str = "") -> Server:
    url = database.replace("postgresql:", "postgresql+psycopg:") or f"sqlite:///{folder / 'mlflow.db'}"
    options = ["--backend-store-uri", url, "--artifacts-destination", files or str(folder / "files")]
    return Server(["mlflow", "server", "--workers", "1", *options], "/health", folder, dict(os.environ))
