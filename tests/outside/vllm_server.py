"""A real vLLM server on loopback, which can be killed and started again at its address."""

import os
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

import httpx
import psutil

MODEL = "smollm"
CONTEXT = 1024
_START_S = 1200.0


class VllmServer:
    """Serves the model in a folder under the name `MODEL` with a context of `CONTEXT` tokens."""

    def __init__(
        self, command: Path, model: Path, folder: Path, options: Sequence[str], variables: Mapping[str, str]
    ) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self._port}/v1"
        self._log = folder / "vllm.log"
        self._command = [command, "serve", model, "--served-model-name", MODEL, "--max-model-len", str(CONTEXT)]
        self._command += ["--enforce-eager", "--host", "127.0.0.1", "--port", str(self._port), *options]
        # Python's own variables are those of another environment.
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "OMP_"))}
        self._variables = {**inherited, "HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1", **variables}
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it without waiting for it."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, env=self._variables, stdout=log, stderr=log, start_new_session=True
            )

    def wait(self) -> None:
        """Wait until it answers."""
        assert self._process is not None
        deadline = time.monotonic() + _START_S
        while not self._is_healthy():
            assert self._process.poll() is None, self._log.read_text()[-3000:]
            assert time.monotonic() < deadline, self._log.read_text()[-3000:]
            time.sleep(0.5)

    def kill(self) -> None:
        """Kill it with all its processes, of which some would go on by themselves."""
        assert self._process is not None
        root = psutil.Process(self._process.pid)
        for process in [root, *root.children(recursive=True)]:
            process.kill()
        self._process.wait()

    def _is_healthy(self) -> bool:
        try:
            return httpx.get(f"http://127.0.0.1:{self._port}/health", timeout=5).status_code == 200
        except httpx.HTTPError:
            return False

    def __enter__(self) -> Self:
        self.start()
        self.wait()
        return self

    def __exit__(self, *exception: object) -> None:
        self.kill()
