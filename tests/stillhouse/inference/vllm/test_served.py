"""Models behind servers that are started as vLLM is; the real one is in `tests/outside/test_vllm_started.py`."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import aclosing, suppress
from pathlib import Path

import psutil
import pytest

from stillhouse.config import RolloutsConfig, RuntimeConfig
from stillhouse.errors import ConfigError, EndpointError
from stillhouse.inference import Endpoint, Journal
from stillhouse.inference.local_server import CAPACITY, Served, served_model
from stillhouse.inference.vllm.environment import vllm_python
from stillhouse.inference.vllm.launch import Launch, started
from stillhouse.rollouts import EverySample, RolloutCollector
from stillhouse.tools import Toolbox
from stillhouse.types import Prompt
from tests.stillhouse.training.vllm_stand_in import stand_in_python


def runtime_of(folder: Path, python: str, **settings: object) -> RuntimeConfig:
    settings = {"engine": "vllm", "device": "cpu", "num_threads": 1, **settings}
    return RuntimeConfig.model_validate({"store": str(folder), "vllm_python": python, **settings})


def serving(url: str) -> psutil.Process:
    """The process that listens at the address."""
    port = int(url.rsplit(":", 1)[1].removesuffix("/v1"))
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            if any(socket.laddr.port == port for socket in child.net_connections("tcp") if socket.status == "LISTEN"):
                return child
    raise AssertionError(f"nothing listens at {url}")


def is_gone(process: psutil.Process) -> bool:
    try:
        return process.wait(30) is not None or not process.is_running()
    except psutil.NoSuchProcess:
        return True


@pytest.mark.slow
def test_a_model_answers_under_its_ref_and_its_server_comes_back_when_it_is_killed_and_goes_with_its_user(
    journal: Journal, make_prompts: Callable[[int], list[Prompt]], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    runtime = runtime_of(tmp_path, stand_in_python(tmp_path))

    async def collect(served: Served) -> int:
        collection = RolloutCollector(
            EverySample(make_prompts(3), 1),
            endpoint=Endpoint(
                served.url, "embedded:student", "student", capacity=served.capacity, comes_back=served.comes_back
            ),
            config=RolloutsConfig(max_tokens=8),
            toolbox=Toolbox([]),
            journal=journal,
            runtime=runtime,
        )
        async with aclosing(collection):
            return len([None async for _ in collection])

    with served_model("embedded:student", runtime, {"enable_thinking": False}) as served:
        assert served.capacity == CAPACITY
        process = serving(served.url)
        # Before it has answered anything but that it is ready.
        process.kill()
        assert is_gone(process)
        assert asyncio.run(collect(served)) == 3
        again = serving(served.url)
        assert again.pid != process.pid
        assert "code 137" in caplog.text
    assert is_gone(again)
    first, second = (tmp_path / "arguments").read_text().splitlines()
    assert first == second
    assert int(first.split()[0]) >= 1, "GiB for keys and values"
    assert "--served-model-name embedded:student" in first
    assert '--default-chat-template-kwargs {"enable_thinking": false}' in first
    assert "--dtype float32" in first, "as its weights are"
    [log] = (tmp_path / "vllm").iterdir()
    assert log.name.endswith("student.log")


def test_a_server_that_ends_at_its_start_says_why_and_auto_does_without_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    error = "ValueError: No available memory for the cache blocks."
    runtime = runtime_of(tmp_path, stand_in_python(tmp_path, refuses=error))
    with pytest.raises(EndpointError, match="No available memory") as caught, served_model("embedded:student", runtime):
        pass
    assert "runtime.engine" in str(caught.value)
    assert str(tmp_path / "vllm") in str(caught.value)
    left_open = runtime.model_copy(update={"engine": "auto"})
    assert started(Launch(Path(str(runtime.vllm_python)), "embedded:student", left_open)) == []
    assert "served by vLLM but by transformers" in caplog.text


def test_the_server_ends_when_its_parent_is_killed(tmp_path: Path) -> None:
    runtime = runtime_of(tmp_path, stand_in_python(tmp_path))
    code = (
        "from stillhouse.config import RuntimeConfig\n"
        "from stillhouse.inference.local_server import served_model\n"
        f"with served_model('embedded:student', RuntimeConfig(**{runtime.model_dump(exclude_unset=True)!r})):\n"
        "    print('served', flush=True)\n"
        "    input()\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"served\n"
        children = psutil.Process(parent.pid).children(recursive=True)
        os.kill(parent.pid, signal.SIGKILL)
        parent.wait(120)
    assert len(children) >= 2
    assert psutil.wait_procs(children, 30)[1] == []


@pytest.mark.parametrize(
    ("version", "word"),
    [("0.9.1", "0.32"), ("", "no vLLM")],
    ids=["too old", "none"],
)
def test_an_environment_that_cannot_serve_is_refused_by_name(tmp_path: Path, version: str, word: str) -> None:
    runtime = runtime_of(tmp_path, stand_in_python(tmp_path, version=version))
    with pytest.raises(ConfigError, match=word) as caught:
        vllm_python(runtime)
    assert "make vllm" in str(caught.value)


def test_a_missing_environment_is_refused_where_vllm_is_wanted_and_no_matter_elsewhere(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="make vllm"):
        vllm_python(runtime_of(tmp_path, str(tmp_path / "nothing")))
    for engine in ("auto", "transformers"):
        assert vllm_python(runtime_of(tmp_path, str(tmp_path / "nothing"), engine=engine)) is None
