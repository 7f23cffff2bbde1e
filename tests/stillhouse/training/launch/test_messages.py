import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stillhouse.errors import TrainingError, TrainingKilled
from stillhouse.processes.guarded_process import GuardedProcess
from stillhouse.training.launch.messages import follow
from stillhouse.types import JsonObject

CHILD = """
import os, sys
print(os.environ["SAYS"])
exit_code = int(os.environ["ENDS"])
sys.stdout.flush()
os.kill(os.getpid(), -exit_code) if exit_code < 0 else sys.exit(exit_code)
"""


@pytest.fixture
def follow_child(sft_job, listener, tmp_path: Path) -> Callable[..., JsonObject]:
    """Follows a process that prints these lines and ends with an exit code."""
    (tmp_path / "guarded_training.py").write_text(CHILD)

    def run(*printed: Any, ends: int = 0) -> JsonObject:
        lines = "\n".join(line if isinstance(line, str) else json.dumps(line) for line in printed)
        variables = {"PYTHONPATH": str(tmp_path), "SAYS": lines, "ENDS": str(ends)}
        with GuardedProcess("guarded_training", [], variables) as process:
            return follow(process, sft_job(tmp_path), listener)

    return run


def test_progress_is_relayed_and_what_libraries_print_is_left_out(follow_child, listener):
    progress = {"stage": "sft", "done": 3, "total": 9, "facts": {"loss": 1.5}}
    assert follow_child("a warning", "[1]", {"progress": progress}, {"done": {"steps": 9}}) == {"steps": 9}
    assert listener.updates == [("sft", 3, 9, {"loss": 1.5})]


def test_an_error_names_the_log(follow_child):
    with pytest.raises(TrainingError, match=r"disk full \(log: .*train\.log\)") as raised:
        follow_child({"error": "disk full", "killed": False}, ends=1)
    assert not isinstance(raised.value, TrainingKilled)


def test_a_stop_from_outside_is_worth_another_try(follow_child):
    with pytest.raises(TrainingKilled, match="stopped by SIGTERM"):
        follow_child({"error": "stopped by SIGTERM", "killed": True}, ends=143)


def test_a_kill_is_worth_another_try_and_shows_the_end_of_the_log(follow_child, tmp_path: Path):
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "train.log").write_text("a first line\nINFO the last one\n")
    with pytest.raises(TrainingKilled, match=r"signal SIGKILL.*continue from the last checkpoint(?s:.*)INFO the last"):
        follow_child("a warning", ends=-9)


def test_an_end_without_a_result_shows_the_end_of_the_log(follow_child):
    with pytest.raises(TrainingError, match=r"without a result \(exit code 3\)(?s:.*)no log was written"):
        follow_child("a warning", ends=3)
