import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from stillhouse.processes.forked import can_fork
from stillhouse.processes.guarded_process import GuardedProcess

FACTS = """
import json, os, sys
sys.stderr.write("an error\\n")
facts = {"args": sys.argv[1:], "name": __name__, "folder": os.getcwd(), "variable": os.environ.get("VARIABLE")}
print(json.dumps({**facts, "had_torch": "torch" in sys.modules, "leads": os.getsid(0) == os.getpid()}))
sys.exit(3)
"""
WITH_A_CHILD = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
print(child.pid, flush=True)
time.sleep(60)
"""
PARENT = """
import os, time
from stillhouse.processes.guarded_process import GuardedProcess
child = GuardedProcess("forked_with_a_child", [], needs_torch=True)
print(os.getpid(), child.pid, child.lines.readline().strip(), flush=True)
time.sleep(60)
"""


@pytest.fixture(autouse=True, scope="module")
def _modules(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Yield modules that the children run; the same for all tests, which so share a server."""
    folder = tmp_path_factory.mktemp("modules")
    (folder / "forked_facts.py").write_text(FACTS)
    (folder / "forked_with_a_child.py").write_text(WITH_A_CHILD)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")]))
        yield


def with_a_child() -> GuardedProcess:
    return GuardedProcess("forked_with_a_child", [], needs_torch=True)


def test_a_child_is_as_if_started_anew_but_has_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    seen = []
    for needs_torch in (False, True):
        child = GuardedProcess("forked_facts", ["--an", "argument"], {"VARIABLE": "value"}, needs_torch=needs_torch)
        seen.append((json.loads(child.lines.read()), child.wait(), capfd.readouterr().err))
        child.stop()
    anew, forked = seen
    anew[0]["had_torch"] = True
    assert forked == anew


@pytest.mark.slow
def test_a_child_can_be_told_by_its_command_line() -> None:
    with with_a_child() as child:
        child.lines.readline()
        assert "-m forked_with_a_child" in " ".join(psutil.Process(child.pid).cmdline())


def test_stopping_a_child_ends_its_group_and_leaves_no_zombie() -> None:
    with with_a_child() as child:
        grandchild = psutil.Process(int(child.lines.readline()))
        assert child.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            child.wait(0.01)
    assert child.poll() == -signal.SIGTERM
    grandchild.wait(120)
    assert not psutil.pid_exists(child.pid)


def test_a_killed_parent_takes_server_child_and_grandchild_with_it() -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        family = [psutil.Process(pid) for pid in pids[1:]]
        family += psutil.Process(parent.pid).children()
        parent.kill()
    assert len(family) == 3
    assert psutil.wait_procs(family, 10)[1] == []


def test_a_killed_server_costs_no_child_and_is_replaced() -> None:
    with with_a_child() as child:
        child.lines.readline()
        server = psutil.Process(child.pid).parent()
        assert server is not None
        server.kill()
        with with_a_child() as another:
            another.lines.readline()
            assert psutil.Process(another.pid).parent() != server
        child_process = psutil.Process(child.pid)
        assert child.poll() is None
    child_process.wait(120)


@pytest.mark.slow
def test_a_variable_that_libraries_may_have_read_gives_another_server() -> None:
    def server(**variables: str) -> psutil.Process | None:
        with GuardedProcess("forked_with_a_child", [], variables, needs_torch=True) as child:
            child.lines.readline()
            return psutil.Process(child.pid).parent()

    assert server() == server(MLFLOW_RUN="read when used")
    assert server() != server(HF_HOME="/read/by/an/import")


def test_nothing_is_forked_beside_a_gpu(tmp_path: Path) -> None:
    device = tmp_path / "nvidiactl"
    assert can_fork([str(device)])
    device.touch()
    assert not can_fork([str(device)])
