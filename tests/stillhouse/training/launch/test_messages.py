import json
from pathlib import Path
from typing import Any

import pytest

from stillhouse.errors import TrainingError, TrainingKilled
from stillhouse.processes.guarded_process import GuardedProcess
from stillhouse.progress.state import Fact
from stillhouse.training.job import TrainJob
from stillhouse.training.launch.messages import follow
from stillhouse.types import JsonObject

CHILD = """
import os, sys
print(os.environ["SAYS"])
sys.exit(int(os.environ["ENDS"]))
"""


class Heard:
    """What a training process says to its launcher, and what comes of it."""

    def __init__(self, job: TrainJob, folder: Path) -> None:
        self._job, self._folder = job, folder
        self.updates: list[tuple[str, int, int | None, dict[str, Fact]]] = []
        (folder / "guarded_training.py").write_text(CHILD)

    def update(self, stage: str, done: int, total: int | None, **facts: Fact) -> None:
        self.updates.append((stage, done, total, facts))

    def follow(self, *said: Any, ends: int = 0) -> JsonObject:
        lines = "\n".join(line if isinstance(line, str) else json.dumps(line) for line in said)
        variables = {"PYTHONPATH": str(self._folder), "SAYS": lines, "ENDS": str(ends)}
        with GuardedProcess("guarded_training", [], variables) as process:
            return follow(process, self._job, self)


@pytest.fixture
def heard(sft_job, tmp_path: Path) -> Heard:
    return Heard(sft_job(tmp_path), tmp_path)


def test_progress_is_relayed_and_what_libraries_print_is_left_out(heard: Heard):
    progress = {"stage": "sft", "done": 3, "total": 9, "facts": {"loss": 1.5}}
    assert heard.follow("a warning", "[1]", {"progress": progress}, {"done": {"steps": 9}}) == {"steps": 9}
    assert heard.updates == [("sft", 3, 9, {"loss": 1.5})]


def test_an_error_names_the_log(heard: Heard):
    with pytest.raises(TrainingError, match=r"disk full \(log: .*train\.log\)") as raised:
        heard.follow({"error": "disk full", "killed": False}, ends=1)
    assert not isinstance(raised.value, TrainingKilled)


def test_a_stop_from_outside_is_worth_another_try(heard: Heard):
    with pytest.raises(TrainingKilled, match="stopped by SIGTERM"):
        heard.follow({"error": "stopped by SIGTERM", "killed": True}, ends=143)


def test_an_end_without_a_result_shows_the_end_of_the_log(heard: Heard):
    with pytest.raises(TrainingError, match=r"without a result \(exit code 3\)(?s:.*)no log was written"):
        heard.follow("a warning", ends=3)
