"""The Slurm job of examples/slurm, with stand-ins of Slurm's commands. deployments/test_borrowed_gpus.py has a flow."""

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.waiting import until

JOB = Path(__file__).resolve().parents[2] / "examples/slurm/job.sh"


@pytest.fixture
def submit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., subprocess.Popen[str]]:
    """Start the job as Slurm does: the script in bash, with the id of the job, which is in this state."""

    def start(command: str, state: str = "RUNNING") -> subprocess.Popen[str]:
        commands = {"squeue": f"echo {state}", "scontrol": f'echo "$@" >> {tmp_path / "asked"}'}
        for name, line in commands.items():
            (tmp_path / name).write_text(f"#!/bin/sh\n{line}\n")
            (tmp_path / name).chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
        monkeypatch.setenv("SLURM_JOB_ID", "42")
        return subprocess.Popen(["bash", str(JOB), "bash", "-c", command], cwd=tmp_path, text=True)

    return start


TRAINING = """
trap 'sleep 0.3; echo saved > checkpoint; exit 1' TERM
[ -e checkpoint ] && exit 0
touch started
while true; do sleep 0.05; done
"""


def test_a_job_ends_as_its_command_ends(submit: Callable[..., subprocess.Popen[str]], tmp_path: Path) -> None:
    assert submit("exit 0").wait(20) == 0
    assert submit("exit 3").wait(20) == 3
    assert not (tmp_path / "asked").exists()


def test_a_job_whose_time_is_up_saves_goes_back_into_the_queue_and_then_goes_on(
    submit: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    job = submit(TRAINING)
    until((tmp_path / "started").exists)
    job.send_signal(signal.SIGTERM)
    assert job.wait(20) == 1
    assert (tmp_path / "checkpoint").read_text() == "saved\n"
    assert (tmp_path / "asked").read_text() == "requeue 42\n"
    assert submit(TRAINING).wait(20) == 0


@pytest.mark.parametrize("state", ["COMPLETING", "PREEMPTED", ""])
def test_a_job_that_was_cancelled_or_preempted_saves_and_leaves_the_rest_to_slurm(
    state: str, submit: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    job = submit(TRAINING, state)
    until((tmp_path / "started").exists)
    job.send_signal(signal.SIGTERM)
    assert job.wait(20) == 1
    assert (tmp_path / "checkpoint").exists()
    assert not (tmp_path / "asked").exists()


def test_options_come_before_the_first_command_or_slurm_does_not_read_them() -> None:
    lines = JOB.read_text().splitlines()
    code = next(number for number, line in enumerate(lines) if line and not line.startswith("#"))
    options = [number for number, line in enumerate(lines) if line.startswith("#SBATCH")]
    assert options
    assert max(options) < code
