import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from stillhouse.processes import GuardedProcess

CHILD = """
import subprocess, sys, time
from stillhouse.processes import die_with_parent
die_with_parent()
grandchild = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
print(grandchild.pid, flush=True)
time.sleep(60)
"""
PARENT = """
import os, sys, time
from stillhouse.processes import GuardedProcess
child = GuardedProcess("guarded_child", [], env={"PYTHONPATH": sys.argv[1]})
print(child.pid, child.lines.readline().strip(), flush=True)
time.sleep(60)
"""


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_until_gone(*pids: int) -> None:
    deadline = time.monotonic() + 10
    while any(map(is_alive, pids)):
        assert time.monotonic() < deadline, f"still alive: {[pid for pid in pids if is_alive(pid)]}"
        time.sleep(0.02)


@pytest.fixture
def child_folder(tmp_path: Path) -> Path:
    (tmp_path / "guarded_child.py").write_text(CHILD)
    return tmp_path


def test_a_killed_parent_takes_the_whole_group_with_it(child_folder: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, str(child_folder)], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        child, grandchild = map(int, parent.stdout.readline().split())
        assert is_alive(child)
        assert is_alive(grandchild)
        os.kill(parent.pid, signal.SIGKILL)
    wait_until_gone(child, grandchild)


def test_leaving_the_block_stops_the_whole_group(child_folder: Path) -> None:
    with GuardedProcess("guarded_child", [], env={"PYTHONPATH": str(child_folder)}) as child:
        grandchild = int(child.lines.readline())
        assert child.poll() is None
    wait_until_gone(child.pid, grandchild)


def test_stopping_a_process_that_has_ended_is_harmless(tmp_path: Path) -> None:
    (tmp_path / "guarded_brief.py").write_text("print('done')")
    child = GuardedProcess("guarded_brief", [], env={"PYTHONPATH": str(tmp_path)})
    assert child.lines.read() == "done\n"
    assert child.wait(10) == 0
    child.stop()
    child.stop()
