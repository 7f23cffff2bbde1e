"""Published students in environments that hold transformers and nothing of this project."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.outside.conftest import installed
from tests.stillhouse.training.results.students import BASES, check, read_plainly, train_and_publish

pytestmark = [pytest.mark.outside, pytest.mark.timeout(1800)]


@pytest.fixture(scope="session", params=["4.57.*", "5.*"])
def python(request: pytest.FixtureRequest, outside: Path) -> Path:
    """Return the Python of an environment with some transformers."""
    environment = outside / f"transformers-{request.param[0]}"
    python = environment / "bin" / "python"
    if not (environment / "complete").exists():
        subprocess.run([sys.executable, "-m", "venv", environment], check=True)
        pip = [python, "-m", "pip", "install", "--quiet", "--no-compile"]
        installed([*pip, "torch==2.13.0"], "torch")
        installed([*pip, f"transformers=={request.param}", "peft", "jinja2"], "transformers")
        (environment / "complete").touch()
    return python


@pytest.mark.parametrize("name", ["base", "chat", *BASES])
def test_a_student_behaves_elsewhere_as_here(name: str, python: Path, tmp_path: Path) -> None:
    for folder, seen in read_plainly(python, train_and_publish(name, tmp_path).bases()).items():
        check(folder, seen)
