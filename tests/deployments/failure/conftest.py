"""A Prefect server, an MLflow server, a teacher and flows, to be failed."""

import json
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from mlflow import MlflowClient

from stillhouse.store.records import read_jsonl
from tests.deployments.processes import Prefect, mlflow_server
from tests.provider import ReceivedRequest, Reply, SimulatedProvider, completion, error

ROOT = Path(__file__).resolve().parents[3]
KEY_VARIABLE = "STILLHOUSE_TEST_KEY"
NUM_PROMPTS = 24
BIN = Path(sys.executable).parent


class Teacher:
    """Answers prompts rightly, from a script that tests change as they go."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self._answers = {row["prompt"]: row["metadata"]["expected_answer"] for row in rows}
        self.provider = SimulatedProvider(self._script)
        self.answered = NUM_PROMPTS
        """So many distinct prompts get an answer; what comes after them gets `otherwise`."""
        self.otherwise = error(429, "later", headers={"retry-after": "0.5"})
        self._known: set[str] = set()

    def _script(self, request: ReceivedRequest) -> Reply:
        question = next(m["content"] for m in request.body["messages"] if m["role"] == "user")
        if question not in self._known and len(self._known) >= self.answered:
            return self.otherwise
        self._known.add(question)
        return Reply(completion(self._answers[question]))

    @property
    def num_asked(self) -> int:
        """Return the requests that came, answered or not."""
        return len(self.provider.ledger)

    @property
    def num_billed(self) -> int:
        """Return the requests answered and paid for."""
        return self.provider.num_billed

    @property
    def paid_twice(self) -> list[str]:
        """Return the requests answered more than once."""
        return [request for request, times in self.provider.billed.items() if times > 1]


class Case:
    """One test's store, config and experiment; starts its flows and tells what became of them."""

    def __init__(self, folder: Path, prefect: Any, mlflow: Any, teacher: Teacher, rows: Path) -> None:
        self.folder, self.prefect, self.mlflow, self.teacher = folder, prefect, mlflow, teacher
        self.store = folder / "store"
        self.config: dict[str, Any] = {
            "prompts": {"source": str(rows), "held_out_fraction": 0.0, "verifier": "numeric"},
            "teacher": {"model": "simulated", "base_url": teacher.provider.url},
            "dataset": {"validation_fraction": 0.0, "filters": {}},
            "student": {"model": "embedded:student", "parameters": "full", "dtype": "float32", "max_length": 256},
            "sft": {
                "num_epochs": 120, "batch_size": 8, "trainer": {"checkpoint_every_steps": 20, "log_every_steps": 20},
            },
            "on_policy": {"enabled": False},
            "evaluation": {"enabled": False},
            "tracking": {"uri": mlflow.url, "experiment": folder.name},
            "runtime": {
                "store": str(self.store), "api_key_env": KEY_VARIABLE, "num_threads": 1, "concurrency": 4,
                "max_concurrency": 4, "hedge": False,
            },
        }  # fmt: skip
        self._flows = ExitStack()

    def start(self, verb: str) -> Any:
        """Return `stillhouse VERB CONFIG`, under way."""
        path = self.folder / "config.yaml"
        path.write_text(yaml.safe_dump(self.config))
        command = [str(BIN / "stillhouse"), verb, str(path)]
        return self._flows.enter_context(self.prefect.launch(command, path.with_suffix(".log"), cwd=self.folder))

    def run(self, verb: str) -> Any:
        """Return the flow's command, which is to end well."""
        flow = self.start(verb)
        flow.finish()
        return flow

    def start_until_ten_answers(self) -> Any:
        """Return `stillhouse generate CONFIG`, of which ten answers are in the journal and no more come for now."""
        self.teacher.answered = 10
        flow = self.start("generate")
        flow.wait_until(lambda: self.journalled() == 10, "the answers are in the journal")
        return flow

    def start_until_checkpoint(self) -> Any:
        """Return `stillhouse sft CONFIG`, which has left a checkpoint."""
        flow = self.start("sft")
        flow.wait_until(lambda: self.newest_checkpoint() > 0, "a checkpoint")
        return flow

    def submit(self, flow: str) -> str:
        """Return a run of the flow's deployment of `smoke` with this config, for a worker; the flow run's id."""
        run_id: str = self.prefect.submit(f"{flow}/smoke-{flow}", self.config)
        return run_id

    def state(self, run_id: str) -> str:
        """Return the type of a flow run's state."""
        return str(self.prefect.state(run_id)["type"])

    def history(self, run_id: str) -> list[str]:
        """Return the names of the states that a flow run was in, oldest first."""
        states = self.prefect.get(f"flow_run_states/?flow_run_id={run_id}")
        return [state["name"] for state in sorted(states, key=lambda state: state["timestamp"])]

    def pause(self, run_id: str) -> None:
        """Do as the button of the flow run's page, with an hour as the time limit."""
        limit = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
        details = {"pause_timeout": limit, "pause_reschedule": True}
        state = {"type": "PAUSED", "name": "Suspended", "state_details": details}
        self.prefect.post(f"flow_runs/{run_id}/set_state", {"state": state, "force": True})

    def flow_runs(self) -> list[dict[str, Any]]:
        """Return those that worked in this store, oldest first; not those of stages, which have no config."""
        runs = self.prefect.post("flow_runs/filter", {"sort": "START_TIME_ASC"})
        runs = [run for run in runs if "config" in run["parameters"]]
        return [run for run in runs if run["parameters"]["config"]["runtime"]["store"] == str(self.store)]

    def states(self) -> list[str]:
        """Return the stages' flow runs of these."""
        return [run["state_type"] for run in self.flow_runs()]

    def newest_checkpoint(self) -> int:
        """Return the step of the newest checkpoint of SFT; 0 without one."""
        found = self.store.glob("training/sft-*/checkpoints/step-*")
        return max((int(path.name.removeprefix("step-")) for path in found), default=0)

    def journalled(self) -> int:
        """Return how many completions are in the journal."""
        with suppress(sqlite3.OperationalError):
            journal = f"file:{self.store / 'journal.sqlite3'}?mode=ro"
            with closing(sqlite3.connect(journal, uri=True, timeout=5)) as database:
                count: int = database.execute("select count(*) from completion").fetchone()[0]
                return count
        return 0

    def runs(self, name: str) -> list[Any]:
        """Return the MLflow runs of a flow or of a stage, oldest first."""
        client = MlflowClient(self.mlflow.url)
        experiment = client.get_experiment_by_name(self.folder.name)
        runs = client.search_runs([experiment.experiment_id], order_by=["attributes.start_time ASC"])
        file = f"flows/{name.replace('-', '_')}.py"
        parents = [run for run in runs if "mlflow.parentRunId" not in run.data.tags]
        found = [run for run in parents if run.data.tags["mlflow.source.name"] == file]
        return found or [run for run in runs if run.info.run_name == name]

    def trackings(self, name: str) -> list[str]:
        """Return the states of these."""
        return [run.info.status for run in self.runs(name)]

    def parent_of(self, name: str) -> str:
        """Return the id of the MLflow run below which the newest run of that name is."""
        return str(self.runs(name)[-1].data.tags["mlflow.parentRunId"])

    def resumed_from_step(self) -> int:
        """Return the step at which the store's one training went on; 0 if it never was interrupted."""
        (manifest,) = self.store.glob("artifacts/sft/*/manifest.json")
        step: int = json.loads((manifest.parent / "student.json").read_text())["facts"]["resumed_from_step"]
        return step

    def view(self, name: str) -> str:
        """Return what `stillhouse view` says of the run of that name."""
        page = self.folder / "page.html"
        command = [str(BIN / "stillhouse"), "view", name, "--store", str(self.store), "--no-open", "-o", str(page)]
        done = subprocess.run(command, env=self.prefect.env, capture_output=True, text=True, check=True)
        return done.stdout.removeprefix(f"{page}: ").strip()

    def fallback(self) -> list[dict[str, Any]]:
        """Return what MLflow did not take."""
        path = self.store / "tracking-fallback.jsonl"
        return list(read_jsonl(path)) if path.exists() else []

    def close(self) -> None:
        self._flows.close()


@pytest.fixture(scope="session")
def prefect(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    env = {
        "PREFECT_SERVER_UI_ENABLED": "false",
        # The shortest there is; a run counts as dead after three of them.
        "PREFECT_FLOWS_HEARTBEAT_FREQUENCY": "30",
        KEY_VARIABLE: "secret-key",
    }
    with Prefect(tmp_path_factory.mktemp("prefect"), **env) as server:
        yield server


@pytest.fixture(scope="session")
def mlflow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with mlflow_server(tmp_path_factory.mktemp("mlflow")) as server:
        yield server


@pytest.fixture(scope="session")
def deployed(prefect: Any) -> Any:
    """Return the server with the pools and the smoke deployments of `deployments/prefect.yaml`."""
    prefect.deploy("smoke")
    return prefect


@pytest.fixture
def start_worker(deployed: Any) -> Iterator[Callable[..., Any]]:
    with ExitStack() as workers:
        yield lambda pool="cpu": workers.enter_context(deployed.worker(pool))


@pytest.fixture(scope="session")
def prompt_rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a prompts file of `NUM_PROMPTS` rows."""
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
def case(tmp_path: Path, prefect: Any, mlflow: Any, teacher: Teacher, prompt_rows: Path) -> Iterator[Case]:
    case = Case(tmp_path, prefect, mlflow, teacher, prompt_rows)
    yield case
    case.close()
