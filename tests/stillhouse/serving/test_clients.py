"""Clients that others wrote, each in its newest version and in an environment of its own, against a real server.

LiteLLM and inspect_ai need different major versions of OpenAI's client, which is so tried in both.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from stillhouse.processes.guarded_process import GuardedProcess

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

Run = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def teacher() -> Iterator[str]:
    """Yield the base URL of a server of the embedded teacher."""
    options = {"model": "embedded:teacher", "name": "teacher", "device": "cpu", "num_threads": 1}
    with GuardedProcess("stillhouse.serving", [json.dumps(options)]) as process:
        yield json.loads(process.lines.readline())["url"]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Run a script beside this file where only the named packages are installed; return the JSON that it prints."""

    def start(script: str, *args: str, packages: list[str], **environment: str) -> dict[str, Any]:
        subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
        python = str(tmp_path / "venv/bin/python")
        pip = [python, "-m", "pip", "install", "--quiet", *packages]
        done = subprocess.run(pip, capture_output=True, text=True, check=False, timeout=600)
        if done.returncode:
            pytest.skip(f"{packages[0]} cannot be installed: {done.stderr.strip().splitlines()[-1:]}")
        kept = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        command = [python, str(Path(__file__).with_name(script)), *args]
        done = subprocess.run(
            command, env={**kept, **environment}, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300
        )
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
        return json.loads(done.stdout.splitlines()[-1])

    return start


def test_litellm_chats_and_calls_tools(run: Run, teacher: str) -> None:
    # LiteLLM imports `mcp` for a request with tools, and does not ask for it.
    packages = ["litellm", "mcp"]
    found = run("litellm_run.py", teacher, packages=packages, LITELLM_LOCAL_MODEL_COST_MAP="True")
    assert found["whole"]["finish_reason"] == "tool_calls"
    [call] = found["whole"]["message"]["tool_calls"]
    assert call["function"]["name"] == "calculator"
    assert "expression" in json.loads(call["function"]["arguments"])
    assert found["cut"]["finish_reason"] == "stop"
    assert found["cut"]["message"]["content"] == found["plain"][: found["plain"].index("culat")]
    assert found["cut"]["logprobs"]["content"]
    assert "made_up" in found["refused"]
    assert "vLLM" in found["refused_stream"]


def test_inspect_ai_evaluates_a_task_with_a_tool(run: Run, teacher: str, tmp_path: Path) -> None:
    server = {"STILLHOUSE_BASE_URL": teacher, "STILLHOUSE_API_KEY": "none"}
    found = run("inspect_run.py", str(tmp_path / "logs"), packages=["inspect_ai", "openai"], **server)
    assert (found["status"], found["scores"]) == ("success", ["C"]), found["error"]
    assert found["messages"] == ["user", "assistant", "tool", "assistant"]
    assert len(found["sampled"]) == 2
    assert found["top_logprobs"] == 2
