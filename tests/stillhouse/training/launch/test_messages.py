import json
import logging
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from stillhouse.errors import TrainingError, TrainingKilled
from stillhouse.processes.guarded_process import GuardedProcess
from stillhouse.training.launch.messages import MessageWriter, follow
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


def test_what_stillhouse_logs_in_the_training_is_logged_here_too_and_once(
    follow_child, listener, caplog: pytest.LogCaptureFixture
):
    lines = StringIO()
    record = logging.LogRecord(
        "stillhouse.training.loop", logging.INFO, "", 0, "saved %s, %.1f s", (Path("a"), 1.25), None
    )
    MessageWriter(lines).handle(record)
    with caplog.at_level(logging.INFO, "stillhouse"):
        follow_child(lines.getvalue().strip(), {"done": {}})
    assert caplog.record_tuples == [("stillhouse.training.loop", logging.INFO, "saved a, 1.2 s")]


@pytest.mark.parametrize(
    ("printed", "exit_code", "error", "message"),
    [
        ({"error": "disk full", "killed": False}, 1, TrainingError, r"disk full \(log: .*train\.log\)"),
        ({"error": "stopped by SIGTERM", "killed": True}, 143, TrainingKilled, "stopped by SIGTERM"),
        ("a warning", -9, TrainingKilled, r"signal SIGKILL.*continue from the last checkpoint(?s:.*)INFO the last"),
        ("a warning", 3, TrainingError, r"without a result \(exit code 3\)(?s:.*)INFO the last"),
    ],
    ids=["an error of its own", "a stop from outside", "a kill", "an end without a result"],
)
def test_a_failure_shows_its_log_and_only_one_from_outside_is_worth_another_try(
    follow_child, tmp_path: Path, printed: Any, exit_code: int, error: type[TrainingError], message: str
):
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "train.log").write_text("a first line\nINFO the last one\n")
    with pytest.raises(TrainingError, match=message) as raised:
        follow_child(printed, ends=exit_code)
    assert raised.type is error


def test_an_error_keeps_its_code_from_one_process_to_the_other(follow_child):
    sent = StringIO()
    MessageWriter(sent).failed("loss 9", killed=False, code="diverged")
    with pytest.raises(TrainingError, match="loss 9") as raised:
        follow_child(sent.getvalue(), ends=1)
    assert raised.value.code == "diverged"


def test_a_process_that_wrote_no_log_is_named_all_the_same(follow_child):
    with pytest.raises(TrainingError, match="no log"):
        follow_child("a warning", ends=3)
