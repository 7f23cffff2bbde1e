import os
import subprocess
import sys
from pathlib import Path

CODE = "from tasks.environment import set_defaults; set_defaults(); import os; print(os.environ['DO_NOT_TRACK'])"


def run(**environment: str) -> str:
    child = {**os.environ, **environment}
    return subprocess.run([sys.executable, "-c", CODE], env=child, capture_output=True, text=True, check=True).stdout


def test_what_the_environment_says_stands(tmp_path: Path) -> None:
    assert run(DO_NOT_TRACK="0", PREFECT_HOME=str(tmp_path)).strip() == "0"


def test_the_folder_of_prefect_is_made_with_its_parents(tmp_path: Path) -> None:
    home = tmp_path / "runs" / "prefect"
    run(PREFECT_HOME=str(home))
    assert home.is_dir()
