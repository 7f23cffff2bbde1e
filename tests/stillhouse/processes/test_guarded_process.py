import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from stillhouse.processes.guarded_process import GuardedProcess
from tests.waiting import are_gone, is_alive

CHILD = """
import subprocess, sys, time
grandchild = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
print(grandchild.pid, flush=True)
time.sleep(60)
"""
PARENT = """
import os, sys, time
from stillhouse.processes.guarded_process import GuardedProcess
child = GuardedProcess("guarded_child", [])
print(child.pid, child.lines.readline().strip(), flush=True)
time.sleep(60)
"""
LAUNCHER = """
import subprocess, sys, time
from stillhouse.processes.exit import announce_parent
announce_parent()
worker = subprocess.Popen([sys.executable, "-c", sys.argv[1]], stdout=subprocess.PIPE, start_new_session=True)
worker.stdout.readline()
print(worker.pid, flush=True)
time.sleep(60)
"""
WORKER = """
import time
from stillhouse.processes.exit import die_with_parent
die_with_parent()
print("ready", flush=True)
time.sleep(60)
"""
STUBBORN = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("ready", flush=True)
time.sleep(60)
"""


@pytest.fixture(autouse=True)
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder whose modules the children of this process and theirs can run."""
    known = os.environ.get("PYTHONPATH")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{known}" if known else str(tmp_path))
    (tmp_path / "guarded_child.py").write_text(CHILD)
    return tmp_path


def killed(*program: str) -> list[int]:
    """Return the process ids that a program prints; they are alive when it is killed."""
    with subprocess.Popen([sys.executable, "-c", *program], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        assert all(map(is_alive, pids))
        parent.kill()
    return pids


def test_a_child_that_is_still_importing_goes_with_its_parent(modules: Path) -> None:
    (modules / "guarded_child.py").write_text("import slow_library\n")
    (modules / "slow_library.py").write_text("import os, time\nprint(os.getpid(), flush=True)\ntime.sleep(60)\n")
    assert are_gone(*killed(PARENT))


def test_a_killed_parent_takes_the_whole_group_with_it() -> None:
    child, grandchild = killed(PARENT)
    assert are_gone(child, grandchild)


def test_leaving_the_block_stops_the_whole_group() -> None:
    with GuardedProcess("guarded_child", []) as child:
        grandchild = int(child.lines.readline())
        assert child.poll() is None
    assert are_gone(child.pid, grandchild)


def test_stopping_a_process_that_has_ended_is_harmless(tmp_path: Path) -> None:
    (tmp_path / "guarded_brief.py").write_text("print('done')")
    child = GuardedProcess("guarded_brief", [])
    assert child.lines.read() == "done\n"
    assert child.wait(120) == 0
    child.stop()
    child.stop()


def test_a_worker_in_a_session_of_its_own_dies_with_its_parent() -> None:
    assert are_gone(*killed(LAUNCHER, WORKER))


def test_a_worker_whose_parent_has_already_gone_does_not_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STILLHOUSE_PARENT", "1")
    worker = subprocess.run([sys.executable, "-c", WORKER], stdout=subprocess.PIPE, check=False)
    assert (worker.returncode, worker.stdout) == (-signal.SIGKILL, b"")


def test_a_wait_for_the_end_that_is_broken_off_ends_in_a_kill(tmp_path: Path) -> None:
    (tmp_path / "guarded_stubborn.py").write_text(STUBBORN)

    def lose_patience(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    child = GuardedProcess("guarded_stubborn", [], grace_s=60)
    assert child.lines.readline() == "ready\n"
    before = signal.signal(signal.SIGALRM, lose_patience)
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    with pytest.raises(KeyboardInterrupt):
        child.stop()
    signal.signal(signal.SIGALRM, before)
    assert child.poll() == -signal.SIGKILL
