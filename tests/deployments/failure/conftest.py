"""A Prefect server, an MLflow server and a teacher on loopback, and flows in processes of their own, to be failed."""

import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import yaml
from mlflow import MlflowClient

from benchmarks.simulated_provider import Asked, Reply, SimulatedProvider, completion, error
from stillhouse.store.records import read_jsonl

ROOT = Path(__file__).resolve().parents[3]
KEY_VARIABLE = "STILLHOUSE_TEST_KEY"
NUM_PROMPTS = 24
BIN = Path(sys.executable).parent


def wait_until(condition: Callable[[], Any], what: str, timeout_s: float = 900.0) -> Any:
    """What `condition` returns once it is true."""
    deadline = time.monotonic() + timeout_s
    while not (found := condition()):
        assert time.monotonic() < deadline, f"not within {timeout_s:.0f} s: {what}"
        time.sleep(0.1)
    return found


class Server:
    """A server process that can be killed and started again at the same address."""

    def __init__(self, command: list[str], port: int, health: str, env: dict[str, str], log: Path) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self._command, self._env, self._log = [*command, "--host", "127.0.0.1", "--port", str(port)], env, log
        self._health = self.url + health
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._log.open("ab") as out:
            # A session of its own, so that its workers die with it.
            self._process = subprocess.Popen(
                self._command, env=self._env, stdout=out, stderr=out, start_new_session=True
            )
        wait_until(self._answers, f"{self._health} answers; see {self._log}")

    def kill(self) -> None:
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self._log.read_text()[-3000:]
        try:
            return httpx.get(self._health, timeout=5).is_success
        except httpx.HTTPError:
            return False


class Prefect:
    """A Prefect server, and what it knows of flow runs."""

    def __init__(self, server: Server, api: str, env: dict[str, str]) -> None:
        self.server, self.api, self.env = server, api, env

    def post(self, path: str, body: dict[str, Any]) -> Any:
        """The server's answer, also of one that is busy for a while."""
        for _ in range(30):
            answer = httpx.post(f"{self.api}/{path}", json=body, timeout=30)
            if answer.status_code != 503:
                break
            time.sleep(1.0)
        answer.raise_for_status()
        return answer.json()

    def flow_runs(self, store: Path) -> list[dict[str, Any]]:
        """Those that worked in `store`, oldest first."""
        runs = self.post("flow_runs/filter", {"sort": "START_TIME_ASC"})
        return [run for run in runs if run["parameters"]["config"]["runtime"]["store"] == str(store)]

    def state(self, run_id: str) -> str:
        """The state of a flow run."""
        answer = httpx.get(f"{self.api}/flow_runs/{run_id}", timeout=30).raise_for_status()
        state: str = answer.json()["state_type"]
        return state

    def tool(self, *command: str) -> None:
        """Runs a command of Prefect's or of ours against this server, from the project's root."""
        whole = [sys.executable, "-m", "tasks.environment", *command]
        done = subprocess.run(whole, cwd=ROOT, env=self.env, capture_output=True, text=True, timeout=900, check=False)
        assert done.returncode == 0, done.stdout + done.stderr

    def states(self, store: Path) -> list[str]:
        """The states of the flow runs in `store`, oldest first."""
        return [run["state_type"] for run in self.flow_runs(store)]


class Teacher:
    """Answers prompts rightly, from a script that tests change as they go."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self._answers = {row["prompt"]: row["metadata"]["expected_answer"] for row in rows}
        self.provider = SimulatedProvider(self._script)
        self.answered = NUM_PROMPTS
        """So many distinct prompts get an answer; what comes after them gets `otherwise`."""
        self.otherwise = error(429, "later", headers={"retry-after": "0.5"})
        self._known: set[str] = set()

    def _script(self, asked: Asked) -> Reply:
        question = next(m["content"] for m in asked.body["messages"] if m["role"] == "user")
        if question not in self._known and len(self._known) >= self.answered:
            return self.otherwise
        self._known.add(question)
        return Reply(completion(self._answers[question]))

    @property
    def num_asked(self) -> int:
        """Requests that came, answered or not."""
        return len(self.provider.ledger)

    @property
    def num_billed(self) -> int:
        """Requests answered and paid for."""
        return self.provider.num_billed

    @property
    def paid_twice(self) -> list[str]:
        """Requests answered more than once."""
        return [request for request, times in self.provider.billed.items() if times > 1]


class FlowProcess:
    """`stillhouse VERB CONFIG` in a process of its own, in a session of its own."""

    def __init__(self, verb: str, config: Path, env: dict[str, str]) -> None:
        self.log = config.with_suffix(".log")
        with self.log.open("ab") as out:
            self.process = subprocess.Popen(
                [str(BIN / "stillhouse"), verb, str(config)],
                cwd=config.parent,
                env=env,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )

    @property
    def said(self) -> str:
        return self.log.read_text(errors="replace")

    def family(self) -> list[psutil.Process]:
        """Every process that this one started, directly or not."""
        return psutil.Process(self.process.pid).children(recursive=True)

    def wait_until(self, condition: Callable[[], Any], what: str) -> None:
        def alive() -> Any:
            assert self.process.poll() is None, self.said[-4000:]
            return condition()

        wait_until(alive, what)

    def end(self, number: signal.Signals) -> int:
        """Sends the signal and sees to it that neither the process nor what it started stays; the exit code."""
        family = self.family()
        os.kill(self.process.pid, number)
        code = self.process.wait(300)
        assert_gone(family)
        return code

    def finish(self) -> None:
        """Waits for the end, which is to be a good one."""
        assert self.process.wait(900) == 0, self.said[-4000:]

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


class Worker:
    """A worker of the pool `cpu`, started as `make worker-cpu` does."""

    def __init__(self, prefect: Prefect, log: Path) -> None:
        self._log = log
        command = [sys.executable, "-m", "tasks.environment", "prefect", "worker", "start", "--pool", "cpu"]
        with log.open("ab") as out:
            self.process = subprocess.Popen(
                command, cwd=ROOT, env=prefect.env, stdout=out, stderr=out, start_new_session=True
            )
        self._seen: list[psutil.Process] = []

    @property
    def said(self) -> str:
        return self._log.read_text(errors="replace")

    def wait_until(self, condition: Callable[[], Any], what: str) -> None:
        def alive() -> Any:
            assert self.process.poll() is None, self.said[-4000:]
            return condition()

        wait_until(alive, f"{what}; the worker said: {self._log}")

    def family(self) -> list[psutil.Process]:
        """The flow's process and all that it started."""
        self._seen += psutil.Process(self.process.pid).children(recursive=True)
        return self._seen

    def kill(self) -> None:
        """Ends the worker and what it started."""
        with suppress(psutil.NoSuchProcess):
            self.family()
        for process in [*self._seen, self.process]:
            with suppress(psutil.NoSuchProcess, ProcessLookupError):
                process.kill()
        self.process.wait()


def assert_gone(family: list[psutil.Process]) -> None:
    _, alive = psutil.wait_procs(family, timeout=120)
    assert not alive, [process.cmdline() for process in alive]


class Case:
    """One test's store, config and experiment; starts its flows and tells what became of them."""

    def __init__(self, folder: Path, prefect: Prefect, mlflow_server: Server, teacher: Teacher, rows: Path) -> None:
        self.folder, self.prefect, self.mlflow_server, self.teacher = folder, prefect, mlflow_server, teacher
        self.store = folder / "store"
        self.config: dict[str, Any] = {
            "prompts": {"source": str(rows), "held_out_fraction": 0.0, "verifier": "numeric"},
            "teacher": {"model": "simulated", "base_url": teacher.provider.url},
            "dataset": {"validation_fraction": 0.0, "filters": {}},
            "student": {
                "model": "embedded:student", "parameters": "full", "dtype": "float32", "max_length": 256,
            },
            "sft": {"num_epochs": 120, "batch_size": 8, "checkpoint_every_steps": 20, "log_every_steps": 20},
            "on_policy": {"enabled": False},
            "evaluation": {"enabled": False},
            "tracking": {"uri": mlflow_server.url, "experiment": folder.name},
            "runtime": {
                "store": str(self.store), "api_key_env": KEY_VARIABLE, "num_threads": 1, "concurrency": 4,
                "max_concurrency": 4, "hedge": False, "label_processes": 1, "peak_tflops": 1.0,
            },
        }  # fmt: skip
        self._flows: list[FlowProcess] = []

    def start(self, verb: str, **env: str) -> FlowProcess:
        """The flow's command, under way."""
        path = self.folder / "config.yaml"
        path.write_text(yaml.safe_dump(self.config))
        flow = FlowProcess(verb, path, {**self.prefect.env, **env})
        self._flows.append(flow)
        return flow

    def run(self, verb: str) -> FlowProcess:
        """The flow's command, which is to end well."""
        flow = self.start(verb)
        flow.finish()
        return flow

    def submit(self, flow: str) -> str:
        """A run of the flow's deployment `smoke` with this config, for a worker; the flow run's id."""
        deployment = httpx.get(f"{self.prefect.api}/deployments/name/{flow}/smoke", timeout=30).raise_for_status()
        body = {"parameters": {"config": self.config}, "state": {"type": "SCHEDULED"}}
        run_id: str = self.prefect.post(f"deployments/{deployment.json()['id']}/create_flow_run", body)["id"]
        return run_id

    def has_checkpoint(self) -> bool:
        return self.newest_checkpoint() > 0

    def newest_checkpoint(self) -> int:
        """The step of the newest checkpoint of SFT; 0 without one."""
        found = self.store.glob("training/sft-*/checkpoints/step-*")
        return max((int(path.name.removeprefix("step-")) for path in found), default=0)

    def journalled(self) -> int:
        """How many completions are in the journal."""
        with suppress(sqlite3.OperationalError):
            journal = f"file:{self.store / 'journal.sqlite3'}?mode=ro"
            with closing(sqlite3.connect(journal, uri=True, timeout=5)) as database:
                count: int = database.execute("select count(*) from completion").fetchone()[0]
                return count
        return 0

    def trackings(self, name: str) -> list[str]:
        """States of the MLflow runs of that name, oldest first."""
        client = MlflowClient(self.mlflow_server.url)
        experiment = client.get_experiment_by_name(self.folder.name)
        runs = client.search_runs([experiment.experiment_id], order_by=["attributes.start_time ASC"])
        return [run.info.status for run in runs if run.info.run_name == name]

    def student_facts(self) -> dict[str, Any]:
        (manifest,) = self.store.glob("artifacts/sft/*/manifest.json")
        facts: dict[str, Any] = json.loads((manifest.parent / "student.json").read_text())["facts"]
        return facts

    def view(self, name: str) -> str:
        """What `stillhouse view` says of the run of that name."""
        page = self.folder / "page.html"
        command = [str(BIN / "stillhouse"), "view", name, "--store", str(self.store), "--no-open", "-o", str(page)]
        done = subprocess.run(command, env=self.prefect.env, capture_output=True, text=True, check=True)
        return done.stdout.removeprefix(f"{page}: ").strip()

    def fallback(self) -> list[dict[str, Any]]:
        """What MLflow did not take."""
        path = self.store / "tracking-fallback.jsonl"
        return list(read_jsonl(path)) if path.exists() else []

    def assert_gone(self, family: list[psutil.Process]) -> None:
        """None of these processes is left, or will be soon."""
        assert_gone(family)

    def close(self) -> None:
        for flow in self._flows:
            flow.kill()


@pytest.fixture(scope="session")
def prefect(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prefect]:
    folder = tmp_path_factory.mktemp("prefect")
    port = free_port()
    # Nothing of the surrounding session's Prefect: neither its server nor its profile.
    env = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    env |= {
        "PREFECT_HOME": str(folder / "home"),
        "PREFECT_API_URL": f"http://127.0.0.1:{port}/api",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_SERVER_UI_ENABLED": "false",
        "DO_NOT_TRACK": "1",
        # The shortest there is; a run counts as dead after three of them.
        "PREFECT_FLOWS_HEARTBEAT_FREQUENCY": "30",
        "OMP_NUM_THREADS": "1",
        KEY_VARIABLE: "secret-key",
    }
    (folder / "home").mkdir()
    command = [sys.executable, "-m", "tasks.environment", "prefect", "server", "start"]
    server = Server(command, port, "/api/health", env, folder / "server.log")
    try:
        server.start()
        yield Prefect(server, env["PREFECT_API_URL"], env)
    finally:
        server.kill()


@pytest.fixture(scope="session")
def deployed(prefect: Prefect) -> Prefect:
    """The server with the pools and the smoke deployments of `deployments/prefect.yaml`."""
    prefect.tool("python", "deployments/pools.py")

    prefect.tool("prefect", "--no-prompt", "deploy", "--name=smoke", "--prefect-file", "deployments/prefect.yaml")
    return prefect


@pytest.fixture
def start_worker(deployed: Prefect, tmp_path: Path) -> Iterator[Callable[[], Worker]]:
    workers: list[Worker] = []

    def start() -> Worker:
        workers.append(Worker(deployed, tmp_path / f"worker-{len(workers)}.log"))
        return workers[-1]

    yield start
    for worker in workers:
        worker.kill()


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


@pytest.fixture(scope="session")
def mlflow_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("mlflow")
    command = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", f"sqlite:///{folder / 'mlflow.db'}"]
    command += ["--workers", "1", "--artifacts-destination", str(folder / "artifacts")]
    env = {**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}
    server = Server(command, free_port(), "/health", env, folder / "server.log")
    try:
        server.start()
        yield server
    finally:
        server.kill()


@pytest.fixture(scope="session")
def prompt_rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A prompts file of `NUM_PROMPTS` rows."""
    path = tmp_path_factory.mktemp("prompts") / "prompts.jsonl"
    with (ROOT / "stillhouse" / "embedded" / "prompts.jsonl").open() as source:
        path.write_text("".join(line for line, _ in zip(source, range(NUM_PROMPTS), strict=False)))
    return path


@pytest.fixture
def teacher(prompt_rows: Path) -> Iterator[Teacher]:
    teacher = Teacher(list(read_jsonl(prompt_rows)))
    with teacher.provider:
        yield teacher


@pytest.fixture
def case(
    tmp_path: Path, prefect: Prefect, mlflow_server: Server, teacher: Teacher, prompt_rows: Path
) -> Iterator[Case]:
    case = Case(tmp_path, prefect, mlflow_server, teacher, prompt_rows)
    yield case
    case.close()
