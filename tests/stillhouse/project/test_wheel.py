"""The package as it is built, without the checkout: all that a project is made of is in it."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

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
