"""inspect_ai in its newest version and in an environment of its own, against a real server."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from stillhouse.processes.guarded_process import GuardedProcess


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_inspect_ai_evaluates_a_task_with_a_tool(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    python = str(tmp_path / "venv/bin/python")
    pip = [python, "-m", "pip", "install", "--quiet", "inspect_ai", "openai"]
    done = subprocess.run(pip, capture_output=True, text=True, check=False, timeout=600)
    if done.returncode:
        pytest.skip(f"inspect_ai cannot be installed: {done.stderr.strip().splitlines()[-1:]}")
    options = {"model": "embedded:teacher", "name": "teacher", "device": "cpu", "num_threads": 1}
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    command = [python, str(Path(__file__).with_name("inspect_run.py")), str(tmp_path / "logs")]
    with GuardedProcess("stillhouse.serving", [json.dumps(options)]) as process:
        environment["STILLHOUSE_BASE_URL"] = json.loads(process.lines.readline())["url"]
        environment["STILLHOUSE_API_KEY"] = "none"
        done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert (found["status"], found["scores"]) == ("success", ["C"]), found["error"]
    assert found["messages"] == ["user", "assistant", "tool", "assistant"]
    assert (len(found["sampled"]), found["top_logprobs"]) == (2, 2)
