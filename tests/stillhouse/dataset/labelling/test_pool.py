import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from stillhouse.config import DatasetConfig, LabelsConfig, ToolsConfig
from stillhouse.dataset.labelling.label import Labelling
from stillhouse.dataset.labelling.pool import label_file, label_processes
from stillhouse.dataset.shards import CANDIDATES_FILE, SIGNATURES_FILE
from stillhouse.errors import ConfigError, StillhouseError
from stillhouse.store.records import write_jsonl
from stillhouse.types import Trajectory

DEADLY = """
import os
from stillhouse.dataset import LabelArgs, label

@label
def deadly(args: LabelArgs, messages: list) -> float:
    os.kill(os.getpid(), 9)
"""
PARENT = """
import os
from stillhouse.dataset.labelling.pool import label_processes

if __name__ == "__main__":
    with label_processes(2) as pool:
        print(pool.submit(os.getpid).result(), flush=True)
        input()
"""


def is_alive(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.fixture
def label_into(tmp_path: Path, make_trajectory: Callable[..., Trajectory]) -> Callable[..., dict[str, bytes]]:
    """Labels three trajectories under the labels of a user's file; what was written, by name."""
    trajectories, metadata = tmp_path / "trajectories.jsonl", tmp_path / "metadata.jsonl"
    write_jsonl(trajectories, [make_trajectory(number) for number in range(3)])
    metadata.write_text("")

    def run(folder: str, labels: str | None = None) -> dict[str, bytes]:
        file = tmp_path / "labels.py"
        file.write_text(labels or "")
        config = LabelsConfig(render=False, file=None if labels is None else str(file))
        labelling = Labelling.of(DatasetConfig(labels=config), tools=ToolsConfig(), student="")
        target = tmp_path / folder
        target.mkdir()
        assert label_file(trajectories, metadata, labelling, target) == 3
        return {name: (target / name).read_bytes() for name in (CANDIDATES_FILE, SIGNATURES_FILE)}

    return run


def test_a_process_writes_what_this_one_would(label_into: Callable[..., dict[str, bytes]]) -> None:
    here = label_into("here")
    with label_processes(1):
        assert label_into("there") == here


def test_an_error_in_a_process_is_the_error_here(label_into: Callable[..., dict[str, bytes]]) -> None:
    with label_processes(1), pytest.raises(ConfigError, match=r"labels\.py, line 2: cannot be loaded: KeyError: 'x'"):
        label_into("there", "\n{}['x']\n")


def test_a_process_that_is_killed_is_told_of_with_what_to_do(label_into: Callable[..., dict[str, bytes]]) -> None:
    with label_processes(1), pytest.raises(StillhouseError, match=r"killed .*Set runtime\.label_processes lower"):
        label_into("there", DEADLY)


def test_processes_die_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    parent = subprocess.Popen([sys.executable, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        assert child.ppid() == parent.pid != os.getpid()
    finally:
        parent.send_signal(signal.SIGKILL)
        parent.communicate()
    deadline = time.monotonic() + 20
    while is_alive(child):
        assert time.monotonic() < deadline
        time.sleep(0.1)
