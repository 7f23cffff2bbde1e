"""A task of inspect_ai as a stage of a run, against the same task by `inspect eval`."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from stillhouse.evaluation.suites import read_log
from stillhouse.processes.guarded_process import GuardedProcess
from tests.outside.conftest import ROOT, installed

pytestmark = [pytest.mark.outside, pytest.mark.timeout(1800)]
STOCK = ROOT / "examples" / "suites" / "stock.py"


@pytest.fixture(scope="session")
def with_inspect(outside: Path) -> Path:
    """Return the Python of an environment that has inspect_ai on top of this one."""
    environment = outside / "inspect"
    python = environment / "bin" / "python"
    if not (environment / "complete").exists():
        subprocess.run([sys.executable, "-m", "venv", environment], check=True)
        spec = find_spec("pydantic")
        assert spec is not None
        assert spec.origin is not None
        [packages] = environment.glob("lib/python*/site-packages")
        (packages / "below.pth").write_text(f"{Path(spec.origin).parents[1]}\n")
        installed([python, "-m", "pip", "install", "--quiet", "inspect-ai"], "inspect_ai")
        (environment / "complete").touch()
    return python


def evaluate(python: Path, folder: Path, suite: str) -> "subprocess.CompletedProcess[str]":
    variables = {**os.environ, "PYTHONPATH": str(ROOT), "PREFECT_HOME": str(folder / "prefect")}
    settings = {"evaluation.suites": f"[{suite}]", "runtime.store": folder / "store"}
    options = [text for key, value in settings.items() for text in ("--set", f"{key}={value}")]
    command = [python, "-m", "flows.cli", "evaluate", ROOT / "configs" / "smoke.yaml", *options]
    return subprocess.run(command, env=variables, cwd=folder, capture_output=True, text=True, check=False)


def artifacts(folder: Path) -> dict[Path, Any]:
    """Return the facts of each result of a suite."""
    manifests = (folder / "store" / "artifacts" / "suite").glob("*/manifest.json")
    return {path.parent: json.loads(path.read_bytes())["artifact"]["facts"] for path in manifests}


def test_a_suite_gives_the_figures_of_inspect_eval_and_is_run_once(with_inspect: Path, tmp_path: Path) -> None:
    options = {"model": "embedded:student", "name": "student", "device": "cpu", "num_threads": 1}
    by_hand = [with_inspect, "-m", "inspect_ai", "eval", f"{STOCK}@stock", "--model", "openai-api/stillhouse/student"]
    by_hand += ["--log-format", "json", "--log-dir", tmp_path / "logs", "--display", "none"]
    with GuardedProcess("stillhouse.serving", [json.dumps(options)]) as process:
        address = json.loads(process.lines.readline())["url"]
        variables = {**os.environ, "STILLHOUSE_BASE_URL": address, "STILLHOUSE_API_KEY": "none"}
        subprocess.run(by_hand, env=variables, check=True)
    scores, failures, facts = read_log(tmp_path / "logs")
    assert (len(scores), failures) == (48, [])

    done = evaluate(with_inspect, tmp_path, f"{STOCK}:stock")
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    found = artifacts(tmp_path)
    figures = sorted(facts["score"] for facts in found.values())
    assert figures == pytest.approx([facts["reported"]["accuracy"], 1.0], abs=0.005), "base and teacher"
    assert all(facts["score"] == facts["reported"]["accuracy"] for facts in found.values())
    [of_base] = [folder for folder, facts in found.items() if facts["score"] == figures[0]]
    rows = [json.loads(line) for line in (of_base / "scores.jsonl").read_text().splitlines()]
    assert {row["id"]: row["score"] for row in rows} == scores

    written = {folder: (folder / "manifest.json").stat().st_mtime_ns for folder in found}
    assert evaluate(with_inspect, tmp_path, f"{STOCK}:stock").returncode == 0
    assert {folder: (folder / "manifest.json").stat().st_mtime_ns for folder in artifacts(tmp_path)} == written


def test_a_suite_that_cannot_run_ends_the_run_with_the_reason_and_a_command_to_try(
    with_inspect: Path, tmp_path: Path
) -> None:
    (tmp_path / "story.py").write_text(
        "from inspect_ai import Task, task\nfrom inspect_ai.dataset import json_dataset\n\n\n"
        "@task\ndef stories():\n    return Task(dataset=json_dataset('stories.jsonl'))\n"
    )
    done = evaluate(with_inspect, tmp_path, "story.py:stories")
    said = done.stdout + done.stderr
    assert done.returncode == 1, said
    assert "evaluation.suites: story.py:stories: FileNotFoundError" in " ".join(said.split())
    assert "once `inspect eval story.py@stories --model mockllm/model`" in " ".join(said.split())
    missing = evaluate(with_inspect, tmp_path, "inspect:no_evals/stories")
    assert missing.returncode == 2
    assert "needs the package no_evals: pip install no_evals" in " ".join((missing.stdout + missing.stderr).split())
