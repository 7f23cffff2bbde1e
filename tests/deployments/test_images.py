"""The images' files by checkers of their formats, and the entry script by itself; `make test-outside` builds images."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.mark.parametrize(
    "command",
    [
        ["hadolint", "--no-color", "Dockerfile"],
        ["check-jsonschema", "--builtin-schema", "vendor.compose-spec", "deployments/compose.yaml"],
    ],
    ids=lambda command: command[0],
)
def test_a_checker_of_the_format_finds_nothing(command: list[str]) -> None:
    done = subprocess.run([BIN / command[0], *command[1:]], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.fixture
def run_script(tmp_path: Path) -> Run:
    def run(script: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [ROOT / "deployments" / "images" / "with-secrets.sh", "sh", "-c", script],
            env={"PATH": "/usr/bin:/bin", "SECRETS_FOLDER": str(tmp_path), **environment},
            capture_output=True,
            text=True,
            check=False,
        )

    return run


def test_each_secret_is_a_variable_of_the_command_and_the_rest_stays(run_script: Run, tmp_path: Path) -> None:
    (tmp_path / "TOKEN").write_text("a b'\"$c\n", encoding="utf-8")
    assert run_script('printf "%s|%s" "$TOKEN" "$OTHER"', OTHER="kept").stdout == "a b'\"$c|kept"


def test_a_secret_whose_name_is_no_variable_stops_the_command(run_script: Run, tmp_path: Path) -> None:
    (tmp_path / "not-a-name").write_text("x", encoding="utf-8")
    result = run_script("echo ran")
    assert (result.returncode != 0, result.stdout) == (True, "")
