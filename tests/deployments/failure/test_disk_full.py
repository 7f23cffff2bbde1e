"""The store's disk full, truly: a small file system of its own, filled up in the middle of a run and freed again."""

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2400)]

NUM_PROMPTS = 24


@pytest.fixture
def small_disk(case: Any) -> Iterator[Path]:
    """Yield the case's store on 64 MiB of its own."""
    case.store.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(case.store)], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip(f"a file system can be mounted by root alone: {mounted.stderr.decode().strip()}")
    yield case.store
    case.close()
    subprocess.run(["umount", "--lazy", str(case.store)], check=True)


def fill(disk: Path) -> Path:
    """Return a file that takes all room that is left."""
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as file:
        try:
            while file.write(bytes(4096)):
                pass
        except OSError:
            return ballast
    raise AssertionError("the disk has no end")


def test_a_disk_that_fills_amid_rollouts_fails_the_run_and_pays_for_no_stored_answer_twice(
    case: Any, small_disk: Path
) -> None:
    flow = case.start_until_ten_answers()
    ballast = fill(small_disk)
    case.teacher.answered = NUM_PROMPTS
    assert flow.process.wait(900) == 1
    assert "Free some space" in flow.output
    assert "Traceback" not in flow.output
    assert case.states() == ["FAILED"]
    assert case.trackings("generate") == ["FAILED"]
    stored = case.journalled()

    ballast.unlink()
    before = case.teacher.num_billed
    case.run("generate")
    assert case.teacher.num_billed - before == NUM_PROMPTS - stored
    assert case.states() == ["FAILED", "COMPLETED"]
    assert case.trackings("generate") == ["FAILED", "FINISHED"]


def test_a_disk_that_fills_amid_a_training_fails_the_run_and_the_same_command_resumes(
    case: Any, small_disk: Path
) -> None:
    flow = case.start_until_checkpoint()
    family = flow.family()
    ballast = fill(small_disk)
    assert flow.process.wait(900) == 1
    assert not [process for process in family if process.is_running()]
    assert "Free some space" in flow.output
    assert "Traceback" not in flow.output
    assert case.states() == ["FAILED"]
    assert case.trackings("train-sft") == ["FAILED"]
    assert case.trackings("sft") == ["FAILED"]

    ballast.unlink()
    case.run("sft")
    assert case.teacher.num_billed == NUM_PROMPTS
    assert case.states() == ["FAILED", "COMPLETED"]
    assert case.trackings("sft") == ["FINISHED"]
    assert case.resumed_from_step() > 0
