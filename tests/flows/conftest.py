"""One Prefect server for all flow tests, in a folder of its own: nobody's `~/.prefect` is touched."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from stillhouse.config import DistillConfig, load_config, parse_config
from stillhouse.store.records import write_jsonl
from tasks.server.environment import set_defaults
from tests.provider import ReceivedRequest, Reply, SimulatedProvider, completion

# Prefect reads its environment once, when it is imported.
set_defaults()

ROOT = Path(__file__).resolve().parents[2]
KEY_VARIABLE = "STILLHOUSE_TEST_KEY"


@pytest.fixture(scope="session", autouse=True)
def prefect_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yield the API URL of a server that all flows of the session use, those of subprocesses too."""
    from prefect.settings import PREFECT_API_URL, PREFECT_HOME, temporary_settings
    from prefect.testing.utilities import prefect_test_harness

    home = tmp_path_factory.mktemp("prefect-home")
    with (
        pytest.MonkeyPatch.context() as patch,
        temporary_settings({PREFECT_HOME: home}),
        prefect_test_harness(server_startup_timeout=120),
    ):
        patch.setenv("PREFECT_HOME", str(home))
        patch.setenv("PREFECT_API_URL", PREFECT_API_URL.value())
        patch.setenv("OMP_NUM_THREADS", "1")
        patch.setenv(KEY_VARIABLE, "secret-key")
        yield PREFECT_API_URL.value()


@pytest.fixture(scope="session")
def smoke_config() -> Callable[..., DistillConfig]:
    """Return `configs/smoke.yaml` on a store of one's own, with `section__key=value` changes."""

    def load(store: Path, **changes: Any) -> DistillConfig:
        overrides = [f"{key.replace('__', '.')}={json.dumps(value)}" for key, value in changes.items()]
        return load_config(ROOT / "configs" / "smoke.yaml", [f"runtime.store={store}", *overrides])

    return load


@pytest.fixture(scope="session")
def little_training() -> dict[str, Any]:
    """Change to the smoke config: a remote teacher, every prompt trained on, SFT alone and little of it."""
    return {
        "prompts__held_out_fraction": 0.0,
        "teacher__model": "simulated",
        "dataset__validation_fraction": 0.0,
        "sft__batch_size": 4,
        "on_policy__enabled": False,
        "evaluation__enabled": False,
        "runtime__api_key_env": KEY_VARIABLE,
        "runtime__shard_size": 4,
    }


@pytest.fixture
def generate_from(tmp_path: Path) -> Callable[..., Any]:
    """Run the flow `generate` over rows of a prompts file, against an endpoint, on a store of the test's own."""
    from flows.generate import generate

    def run(url: str, rows: list[dict[str, Any]], **sections: dict[str, Any]) -> Any:
        source = tmp_path / "prompts.jsonl"
        write_jsonl(source, rows)
        body: dict[str, Any] = {
            "prompts": {"source": str(source), "held_out_fraction": 0.0},
            "teacher": {"model": "simulated", "base_url": url},
            "tools": {"builtin": ["calculator"]},
            "dataset": {"validation_fraction": 0.0},
            "tracking": {"enabled": False},
            "runtime": {"store": str(tmp_path / "runs"), "api_key_env": KEY_VARIABLE, "num_threads": 1},
        }
        for name, section in sections.items():
            body[name] = {**body.get(name, {}), **section}
        return generate(parse_config(body, origin="test"))

    return run


@pytest.fixture
def provider(request: pytest.FixtureRequest, knowing_teacher) -> Iterator[SimulatedProvider]:
    """Answer as `answer` of the test's file does, or else as `knowing_teacher`."""
    with SimulatedProvider(getattr(request.module, "answer", knowing_teacher)) as running:
        yield running


@pytest.fixture
def generate(provider: SimulatedProvider, generate_from) -> Callable[..., Any]:
    """Run the flow `generate` over rows against `provider`."""
    return partial(generate_from, provider.url)


@pytest.fixture(scope="session")
def cli() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run `stillhouse ARGS` as a user would, in a folder of one's own."""

    def run(
        *args: object, cwd: Path, env: dict[str, str | None] | None = None, timeout_s: float = 120
    ) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, **(env or {})}
        return subprocess.run(
            [str(Path(sys.executable).parent / "stillhouse"), *map(str, args)],
            cwd=cwd,
            env={name: value for name, value in environment.items() if value is not None},
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )

    return run


@pytest.fixture
def shell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str]]:
    """Call the console script's entry point in this process, which saves the seconds that a new one imports for."""
    from flows.cli import run_command

    def run(*args: str) -> tuple[int, str]:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["stillhouse", *args])
        monkeypatch.setenv("PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", "CRITICAL")
        monkeypatch.delenv("HF_TOKEN", raising=False)
        with pytest.raises(SystemExit) as end:
            run_command()
        captured = capsys.readouterr()
        return int(end.value.code or 0), captured.out + captured.err

    return run


@pytest.fixture
def unused_url() -> Iterator[str]:
    """Yield an endpoint's address where nobody answers; its port is taken, so that no other test's server gets it."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{bound.getsockname()[1]}/v1"


@pytest.fixture(scope="session")
def embedded_rows() -> list[dict[str, Any]]:
    """Return the first eight prompts that come with Stillhouse, as rows of a prompts file."""
    with (ROOT / "stillhouse" / "embedded" / "prompts.jsonl").open() as file:
        return [json.loads(line) for _, line in zip(range(8), file, strict=False)]


@pytest.fixture(scope="session")
def knowing_teacher(embedded_rows: list[dict[str, Any]]) -> Callable[[ReceivedRequest], Reply]:
    """Answer each of `embedded_rows` rightly; every second one only after it has used the calculator."""
    answers = {row["prompt"]: row["metadata"]["expected_answer"] for row in embedded_rows}
    by_tool = set(list(answers)[::2])

    def answer(request: ReceivedRequest) -> Reply:
        question = next(m["content"] for m in request.body["messages"] if m["role"] == "user")
        if question in by_tool and request.body["messages"][-1]["role"] == "user":
            return Reply(completion(tool_calls=[("calculator", json.dumps({"expression": answers[question]}))]))
        return Reply(completion(answers[question]))

    return answer
