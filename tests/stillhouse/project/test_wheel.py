"""The package as it is built, without the checkout: all that a project is made of is in it."""

import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


def test_a_built_wheel_writes_the_same_project_as_the_checkout(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True, timeout=120)
    (wheel,) = tmp_path.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(tmp_path / "installed")
    program = (
        "from pathlib import Path; from stillhouse.project import create_project, __file__ as place;"
        "print(place); [create_project(Path(name), name) for name in ('sft', 'on-policy')]"
    )
    for origin, folder in (("installed", tmp_path / "installed"), ("checkout", ROOT)):
        (tmp_path / "made" / origin).mkdir(parents=True)
        done = subprocess.run(
            [sys.executable, "-c", program],
            cwd=tmp_path / "made" / origin,
            env={**os.environ, "PYTHONPATH": str(folder)},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip().startswith(str(folder))
    made = {origin: contents(tmp_path / "made" / origin) for origin in ("installed", "checkout")}
    assert made["installed"] == made["checkout"]
    assert len(made["installed"]) == 16


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return programs of an environment with the wheel and what it depends on, which knows nothing of the checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True, timeout=120)
    venv.create(folder / "venv", with_pip=False)
    programs = folder / "venv" / "bin"
    pip = [sys.executable, "-m", "pip", "--python", str(programs / "python"), "install", "--no-deps", "--no-index"]
    subprocess.run([*pip, str(next(folder.glob("*.whl")))], check=True, capture_output=True, timeout=120)
    # A line of a .pth file adds a folder without reading the .pth files in it, by which a checkout is installed.
    (packages,) = (folder / "venv").glob("lib/python*/site-packages")
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return programs


def run(command: list[str | Path], folder: Path) -> str:
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PREFECT_API_URL")}
    environment["PREFECT_HOME"] = str(folder / "prefect")
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_project_made_and_run_by_the_installed_wheel_ends_with_a_student(installed: Path, tmp_path: Path) -> None:
    command = installed / "stillhouse"
    place = run([installed / "python", "-c", "import flows; print(flows.__file__)"], tmp_path)
    assert place.startswith(str(installed.parent))
    run([command, "init", "project"], tmp_path)
    short = ("rollouts.max_prompts=8", "sft.num_epochs=1", "evaluation.enabled=false", "tracking.enabled=false")
    settings = [part for setting in short for part in ("--set", setting)]
    run([command, "distill", "config.yaml", *settings], tmp_path / "project")
    (student,) = (tmp_path / "project" / "runs" / "artifacts" / "sft").glob("*/model.safetensors")
    assert student.stat().st_size > 0


@pytest.mark.slow
def test_the_installed_flows_are_served_as_deployments(installed: Path, tmp_path: Path) -> None:
    program = (
        "from tasks.server.environment import set_defaults; set_defaults()\n"
        "from prefect.flows import load_flow_from_entrypoint\n"
        "from prefect.types.entrypoint import EntrypointType\n"
        "flow = load_flow_from_entrypoint('flows.distill.distill', use_placeholder_flow=False)\n"
        "print(flow.to_deployment('demo', entrypoint_type=EntrypointType.MODULE_PATH).entrypoint)"
    )
    assert run([installed / "python", "-c", program], tmp_path).strip().endswith("flows.distill.distill")
