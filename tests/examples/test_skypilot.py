"""The command of examples/skypilot, with a stand-in of `sky`; tests/deployments/test_borrowed_gpus.py has a flow."""

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.waiting import until

ROOT = Path(__file__).resolve().parents[2]
SKY = r"""#!/bin/sh
echo "$@" >> "$SKY_LOG"
[ "$1" = launch ] && { touch "$SKY_LOG.up"; eval "$SKY_JOB"; }
"""


@pytest.fixture
def execute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], subprocess.Popen[bytes]]:
    """Start the command of a flow run while the job on the machine does this."""

    def start(job: str) -> subprocess.Popen[bytes]:
        (tmp_path / "sky").write_text(SKY)
        (tmp_path / "sky").chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
        monkeypatch.setenv("SKY_LOG", str(tmp_path / "log"))
        monkeypatch.setenv("SKY_JOB", job)
        monkeypatch.setenv("PREFECT__FLOW_RUN_ID", "01234567-89ab-cdef-0123-456789abcdef")
        return subprocess.Popen(["bash", "examples/skypilot/execute.sh"], cwd=ROOT)

    return start


@pytest.mark.parametrize("code", [0, 100])
def test_the_machine_is_taken_down_after_a_good_and_a_bad_end(
    code: int, execute: Callable[[str], subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    assert execute(f"exit {code}").wait(20) == code
    launch, down = (tmp_path / "log").read_text().splitlines()
    assert launch.startswith("launch --yes --cluster stillhouse-01234567-89ab ")
    assert down == "down --yes --async stillhouse-01234567-89ab"


def test_the_machine_of_a_cancelled_run_is_taken_down(
    execute: Callable[[str], subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    command = execute("exec sleep 600")
    until((tmp_path / "log.up").exists)
    command.send_signal(signal.SIGTERM)
    assert command.wait(20) == 143
    assert (tmp_path / "log").read_text().splitlines()[1].startswith("down ")
