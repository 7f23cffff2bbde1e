"""The two scripts that run in every container."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def run_script(tmp_path: Path, images: Path) -> Any:
    def run(script: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [images / "with-secrets.sh", "sh", "-c", script],
            env={"PATH": "/usr/bin:/bin", "SECRETS_FOLDER": str(tmp_path), **environment},
            capture_output=True,
            text=True,
            check=False,
        )

    return run


def test_each_secret_is_a_variable_of_the_command_and_the_rest_stays(run_script: Any, tmp_path: Path) -> None:
    (tmp_path / "TOKEN").write_text("a b'\"$c\n", encoding="utf-8")
    assert run_script('printf "%s|%s" "$TOKEN" "$OTHER"', OTHER="kept").stdout == "a b'\"$c|kept"


def test_without_secrets_the_command_runs_all_the_same(run_script: Any) -> None:
    assert run_script("echo here; exit 3").returncode == 3


def test_a_secret_whose_name_is_no_variable_stops_the_command(run_script: Any, tmp_path: Path) -> None:
    (tmp_path / "not-a-name").write_text("x", encoding="utf-8")
    result = run_script("echo ran")
    assert (result.returncode != 0, result.stdout) == (True, "")


def _health(images: Path, **environment: str) -> int:
    command = [sys.executable, images / "healthy.py"]
    return subprocess.run(command, env=environment, capture_output=True, check=False).returncode


@pytest.mark.parametrize(("status", "code"), [(200, 0), (503, 1)])
def test_health_is_what_the_address_answers(status: int, code: int, images: Path, answering: Any) -> None:
    assert _health(images, HEALTH_URL=answering(status)) == code


def test_a_server_that_is_gone_is_not_healthy_and_a_container_without_one_is(
    images: Path, free_port: Callable[[], int]
) -> None:
    assert _health(images, HEALTH_URL=f"http://127.0.0.1:{free_port()}/") == 1
    assert _health(images) == 0
