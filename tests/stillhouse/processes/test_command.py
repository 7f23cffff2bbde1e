import subprocess
import sys
from pathlib import Path

import pytest


def run(folder: Path, *command: str) -> int:
    """The exit code of a command whose output is appended to `folder/log`."""
    module = [sys.executable, "-m", "stillhouse.processes.command", str(folder / "log")]
    return subprocess.run([*module, *command], cwd=folder, env={"PYTHONHASHSEED": "1"}, check=False).returncode


@pytest.mark.parametrize(("ending", "code"), [("exit 3", 3), ("kill -9 $$", 137)], ids=["by itself", "killed"])
def test_a_command_s_code_and_output_are_kept(tmp_path: Path, ending: str, code: int) -> None:
    (tmp_path / "log").write_text("earlier\n")
    assert run(tmp_path, "/bin/sh", "-c", f"echo said; echo wrong >&2; {ending}") == code
    assert (tmp_path / "log").read_text() == "earlier\nsaid\nwrong\n"


def test_a_python_gets_no_variables_of_this_one_and_no_modules_of_the_working_directory(tmp_path: Path) -> None:
    (tmp_path / "json.py").write_text("print('shadowed')")
    code = "import json, os; print(json.dumps([name for name in os.environ if name.startswith('PYTHON')]))"
    assert run(tmp_path, sys.executable, "-c", code) == 0
    assert (tmp_path / "log").read_text() == '["PYTHONSAFEPATH"]\n'


def test_a_command_that_is_not_there_says_so(tmp_path: Path) -> None:
    assert run(tmp_path, "/nowhere/vllm") == 127
    assert "/nowhere/vllm" in (tmp_path / "log").read_text()
