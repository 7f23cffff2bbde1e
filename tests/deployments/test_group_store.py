"""Two users of a machine and one store: what the first began, the second continues."""

import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import yaml

from stillhouse.store.records import write_jsonl
from tests.deployments.processes import Launched
from tests.provider import Reply, SimulatedProvider, completion

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

FIRST, SECOND, GROUP = 65001, 65002, 65100


def as_user(user: int, folder: Path) -> dict[str, Any]:
    """Return how a process of a user, a member of the group, is started: with the usual umask and a home of its own."""
    home = folder / str(user)
    home.mkdir(exist_ok=True)
    os.chown(home, user, user)
    outside = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    env = {**outside, "HOME": str(home), "USER": f"user{user}", "PREFECT_HOME": f"{home}/prefect", "TEAM_KEY": "k"}
    return {"user": user, "group": user, "extra_groups": [GROUP], "umask": 0o022, "cwd": home, "env": env}


@pytest.fixture
def folder() -> Iterator[Path]:
    """Return a folder that both users reach, unlike those of pytest."""
    if os.getuid() != 0:
        pytest.skip("needs root, to be two users")
    with TemporaryDirectory() as name:
        path = Path(name)
        path.chmod(0o755)
        try:
            subprocess.run([sys.executable, "-c", ""], **as_user(FIRST, path), check=True)
        except (PermissionError, subprocess.CalledProcessError):
            pytest.skip(f"other users cannot run {sys.executable}")
        yield path


def test_a_second_user_continues_the_first_ones_run(folder: Path) -> None:
    store, config = folder / "store", folder / "config.yaml"
    store.mkdir()
    os.chown(store, FIRST, GROUP)
    store.chmod(0o2770)
    write_jsonl(folder / "prompts.jsonl", [{"prompt": f"What is 20 + {number}?"} for number in range(8)])
    with SimulatedProvider(lambda _: Reply(completion("It is 42."))) as provider:
        trainer = {"checkpoint_every_steps": 5, "log_every_steps": 5}
        body: dict[str, Any] = {
            "prompts": {"source": str(folder / "prompts.jsonl"), "held_out_fraction": 0.0},
            "teacher": {"model": "simulated", "base_url": provider.url},
            "dataset": {"validation_fraction": 0.0, "filters": {}},
            "student": {"model": "embedded:student", "parameters": "full", "dtype": "float32", "max_length": 256},
            "sft": {"num_epochs": 40, "batch_size": 4, "trainer": trainer},
            "on_policy": {"enabled": False},
            "evaluation": {"enabled": False},
            "runtime": {"store": str(store), "store_mode": "group", "api_key_env": "TEAM_KEY", "num_threads": 1},
        }
        config.write_text(yaml.safe_dump(body))
        command = [str(Path(sys.executable).parent / "stillhouse"), "sft", str(config)]
        with Launched(command, folder / "first.log", **as_user(FIRST, folder)) as first:
            first.wait_until(lambda: any(store.glob("training/sft-*/checkpoints/step-*")), "a checkpoint")
            first.end(signal.SIGTERM)
        _assert_for_group(store)
        asked = len(provider.ledger)
        with Launched(command, folder / "second.log", **as_user(SECOND, folder)) as second:
            second.finish()
        assert len(provider.ledger) == asked
    _assert_for_group(store)
    (student,) = store.glob("artifacts/sft/*/student.json")
    assert json.loads(student.read_text())["facts"]["resumed_from_step"] > 0
    assert student.stat().st_uid == SECOND


def _assert_for_group(store: Path) -> None:
    entries = [path for path in (store, *store.rglob("*")) if not path.is_symlink()]
    modes = {path: (oct(stat.S_IMODE(path.stat().st_mode)), path.stat().st_gid) for path in entries}
    assert [path for path in entries if modes[path] != ("0o2770" if path.is_dir() else "0o660", GROUP)] == [], modes
