"""What the Dockerfile promises, without Docker."""

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tasks.server.environment import DEFAULTS

Stages = dict[str, list[tuple[str, str]]]
TARGETS = ("cpu", "gpu")


def _of(stages: Stages, stage: str, instruction: str) -> list[str]:
    return [arguments for kind, arguments in stages[stage] if kind == instruction]


def test_hadolint_finds_nothing(root: Path) -> None:
    command = [Path(sys.executable).with_name("hadolint"), "--no-color", root / "Dockerfile"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_servers_and_workers_start_with_the_settings_of_a_run_from_the_shell(
    entry_point: list[str], image_environment: dict[str, str], tmp_path: Path
) -> None:
    given = {"PATH": os.environ["PATH"], "SECRETS_FOLDER": str(tmp_path), "PREFECT_HOME": str(tmp_path / "prefect")}
    done = subprocess.run([*entry_point, "env"], env=given, capture_output=True, text=True, check=True, cwd=tmp_path)
    variables = dict(line.split("=", 1) for line in done.stdout.splitlines())
    assert {name: variables.get(name) for name in DEFAULTS} == DEFAULTS
    # What the image itself sets would win over the defaults.
    assert not set(image_environment) & set(DEFAULTS)


@pytest.mark.parametrize("target", TARGETS)
def test_images_run_as_a_user_without_power_under_an_init(target: str, stages: Stages) -> None:
    user = _of(stages, target, "USER")[-1]
    assert re.fullmatch(r"[1-9]\d*", user)
    assert any(f"--uid {user}" in command for command in _of(stages, target, "RUN"))
    assert json.loads(_of(stages, target, "ENTRYPOINT")[-1])[:3] == ["tini", "--", "with-secrets"]
    assert len(_of(stages, target, "HEALTHCHECK")) == 1


def test_the_base_image_is_one_release(root: Path) -> None:
    text = (root / "Dockerfile").read_text(encoding="utf-8")
    (base,) = re.findall(r"^ARG PYTHON_IMAGE=(.+)$", text, re.MULTILINE)
    assert re.fullmatch(r"python:\d+\.\d+\.\d+-slim-\w+", base)
    outside = {line.split()[1] for line in text.splitlines() if line.startswith("FROM ")}
    assert outside <= {"${PYTHON_IMAGE}", "dependencies", "runtime"}


def test_packages_come_from_the_constraints_and_torch_alone_from_its_own_index(root: Path) -> None:
    text = re.sub(r"\\\n\s*", "", (root / "Dockerfile").read_text(encoding="utf-8"))
    installs = re.findall(r"/venv/bin/pip install ([^&\n]+)", text)
    of_torch = [command for command in installs if "--index-url" in command]
    assert len(of_torch) == len(TARGETS)
    for command in of_torch:
        assert command.split()[-1] == "torch"
        assert "--no-deps" in command
    assert all(
        "-c constraints.txt" in command
        for command in installs
        if command.strip() != "--no-compile --no-deps --force-reinstall ."
    )
    addresses = set(re.findall(r"https?://[^/\s]+", text))
    assert addresses == {"https://download.pytorch.org"}


def test_an_environment_is_finished_without_the_tests_of_packages_and_with_bytecode(root: Path, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path], check=True)
    [packages] = tmp_path.glob("lib/python*/site-packages")
    for name in (
        "pandas/tests/test_a.py",
        "pandas/core.py",
        "torch/test/a.py",
        "torch/bin/test_api",
        "torch/bin/torch_shm_manager",
    ):
        (packages / name).parent.mkdir(parents=True, exist_ok=True)
        (packages / name).write_text("")
    subprocess.run(["sh", root / "deployments" / "images" / "slim.sh", tmp_path], check=True)
    files = {path.relative_to(packages).as_posix() for path in packages.rglob("*") if path.is_file()}
    compiled = {name for name in files if name.endswith(".pyc")}
    assert files - compiled == {"pandas/core.py", "torch/bin/torch_shm_manager"}
    assert len(compiled) == 1


def test_extras_that_the_images_install_exist(root: Path) -> None:
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    asked = re.findall(r"'\.\[([\w,]+)\]'", (root / "Dockerfile").read_text(encoding="utf-8"))
    assert len(asked) == len(TARGETS)
    assert {extra for group in asked for extra in group.split(",")} <= set(project["optional-dependencies"])


def test_the_context_holds_what_is_copied_and_no_secrets_or_results(root: Path, stages: Stages) -> None:
    lines = (root / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert lines[0] == "*"
    let_in = {line[1:] for line in lines if line.startswith("!")}
    copied = {
        source.split("/")[0]
        for arguments in {text for stage in stages.values() for kind, text in stage if kind == "COPY"}
        if not arguments.startswith("--from")
        for source in [part for part in arguments.split() if not part.startswith("--")][:-1]
    }
    assert copied == let_in
    assert "deployments/.env" in lines
    ignored = subprocess.run(["git", "check-ignore", "deployments/.env"], cwd=root, capture_output=True, check=False)
    assert ignored.returncode == 0
