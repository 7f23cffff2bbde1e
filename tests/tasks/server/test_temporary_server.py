"""The Prefect server that a run starts for itself, and when it does not."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

FLOW = """
import os
from tasks.server.environment import quiet_console, set_defaults
set_defaults()
quiet_console()
from tasks.server.temporary_server import ensure_server, flow_on_server
ensure_server()
from prefect import flow
@flow
def work():
    from tasks.server.temporary_server import has_lasting_server
    return has_lasting_server()
with flow_on_server():
    print(work())
"""
ENSURE = """
from tasks.server.temporary_server import ensure_server
ensure_server()
import os
print(os.environ.get("STILLHOUSE_TEMPORARY_SERVER"), os.environ.get("PREFECT_API_URL"))
"""


def run(code: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Return the result of Python code in `folder`, whose Prefect knows no server."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    env |= {"PREFECT_HOME": str(folder / "home"), "PYTHONPATH": os.pathsep.join(sys.path), **variables}
    command = [sys.executable, "-c", code]
    return subprocess.run(command, env=env, cwd=folder, capture_output=True, text=True, check=False, timeout=300)


def test_a_flow_runs_on_a_server_of_its_own_which_ends_with_it(tmp_path: Path) -> None:
    result = run(FLOW, tmp_path)
    assert result.stdout == "False\n", result.stderr
    assert (tmp_path / "home" / "prefect.db").exists()


@pytest.mark.slow
def test_a_server_that_cannot_start_is_an_error_that_points_at_its_reason(tmp_path: Path) -> None:
    database = f"sqlite+aiosqlite:///{tmp_path}/missing/prefect.db"
    result = run(FLOW, tmp_path, PREFECT_API_DATABASE_CONNECTION_URL=database)
    assert "unable to open database file" in result.stderr
    assert "does not answer: the run started it, and the lines above say why it ended" in result.stderr


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("home/profiles.toml", 'active = "x"\n[profiles.x]\nPREFECT_API_URL = "http://127.0.0.1:9/api"\n'),
        ("prefect.toml", '[api]\nurl = "http://127.0.0.1:9/api"\n'),
        ("pyproject.toml", '[tool.prefect.api]\nurl = "http://127.0.0.1:9/api"\n'),
    ],
)
def test_no_server_is_started_where_a_settings_file_of_prefect_names_one(tmp_path: Path, file: str, text: str) -> None:
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text(text)
    assert run(ENSURE, tmp_path).stdout == "None None\n"


def test_a_server_named_by_the_environment_that_is_down_is_named_in_the_error(tmp_path: Path) -> None:
    result = run(FLOW, tmp_path, PREFECT_API_URL="http://127.0.0.1:9/api")
    assert "http://127.0.0.1:9/api does not answer: start it, or unset PREFECT_API_URL" in result.stderr
