"""`VllmProcess`: a `vllm serve` that is started again at its address when it ends by itself."""

import logging
import re
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import httpx

from stillhouse.errors import EndpointError
from stillhouse.processes.guarded_process import GuardedProcess
from stillhouse.store.private import private_folder

START_TIMEOUT_S: Final = 1800.0
"""A first start, which compiles the model, takes up to a quarter of an hour on a slow machine."""
_MAX_RESTARTS: Final = 5
_POLL_S: Final = 0.5
_GRACE_S: Final = 15.0
_SHOWN_LINES: Final = 8
_READ_BYTES: Final = 1 << 16
_CAUSE: Final = re.compile(r"\b\w*(?:Error|Exception): .+")
_CHATTER: Final = re.compile(r"\b(?:INFO|DEBUG|WARNING)\b")
_NO_MEMORY: Final = re.compile(
    r"out of memory|No available memory|Free memory on device|KV cache is needed", re.IGNORECASE
)

_logger = logging.getLogger("stillhouse.vllm")
starting: Final = threading.Lock()
"""Held from the choice of devices until the server answers: it measures their free memory meanwhile."""


class VllmProcess:
    """One server, which answers at `url` from `wait` until `stop`. Safe to use from several threads.

    `command` lacks address and port; output goes to the end of `log`. It has to answer within `start_timeout_s`.
    """

    def __init__(
        self, model: str, command: Sequence[str], variables: Mapping[str, str], log: Path, start_timeout_s: float
    ) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        private_folder(log.parent)
        self.url = f"http://127.0.0.1:{port}/v1"
        self.log = log
        self._num_starts = 0
        self._model = model
        self._args = [str(log), *command, "--host", "127.0.0.1", "--port", port]
        self._variables = variables
        self._timeout_s = start_timeout_s
        self._lock = threading.Lock()
        self._is_ended = False
        self._process = self._started()

    def wait(self) -> None:
        """Return once it answers; raise EndpointError with the reason out of the log if it does not come to it."""
        deadline = time.monotonic() + self._timeout_s
        with httpx.Client(trust_env=False, timeout=5.0) as client:
            while (code := self._process.poll()) is None and time.monotonic() < deadline:
                with suppress(httpx.HTTPError):
                    if client.get(f"{self.url.removesuffix('/v1')}/health").status_code == 200:
                        threading.Thread(target=self._watch, name="vllm-watch", daemon=True).start()
                        return
                time.sleep(_POLL_S)
        ended = f"ended with code {code}" if code is not None else f"did not answer within {self._timeout_s:g} s"
        raise EndpointError(f"the vLLM server of {self._model!r} {ended}: {why(self.log, self._log_start)}")

    def poll(self) -> int | None:
        """Return the exit code of a server that is not started again; None while it runs or is about to."""
        return self._process.poll() if self._is_ended else None

    def stop(self) -> None:
        """End the server and its processes: by SIGINT, SIGTERM, SIGKILL, with time between them."""
        with self._lock:
            self._is_ended = True
            self._process.interrupt(_GRACE_S)
            self._process.stop()

    def _started(self) -> GuardedProcess:
        self._num_starts += 1
        self._log_start = self.log.stat().st_size if self.log.exists() else 0
        return GuardedProcess("stillhouse.processes.command", self._args, self._variables, grace_s=_GRACE_S)

    def _watch(self) -> None:
        process = self._process
        while True:
            code = process.wait()
            with self._lock:
                if self._is_ended:
                    return
                # What it left behind would keep its memory.
                process.stop()
                self._is_ended = self._num_starts > _MAX_RESTARTS
                then = "is not started again" if self._is_ended else "is started again"
                said = why(self.log, self._log_start)
                _logger.error("the vLLM server of %s ended with code %s and %s: %s", self._model, code, then, said)
                if self._is_ended:
                    return
                process = self._process = self._started()


def why(log: Path, start: int = 0) -> str:
    """Return what a log says from byte `start` on about a server's end: the first error, the last lines, a remedy."""
    with log.open("rb") as file:
        file.seek(max(start, file.seek(0, 2) - _READ_BYTES))
        text = file.read().decode(errors="replace")
    lines = [line for line in text.strip().splitlines() if not _CHATTER.search(line)]
    causes = [match[0] for line in lines if (match := _CAUSE.search(line))]
    remedy = f". All of it: {log}"
    if _NO_MEMORY.search(text):
        remedy = f". It needs more memory: end other programs, or set runtime.engine to `transformers`{remedy}"
    return "\n".join([*causes[:1], *lines[-_SHOWN_LINES:]]) + remedy
