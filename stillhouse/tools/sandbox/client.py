"""The caller's end of the sandbox."""

import asyncio
import inspect
import json
import os
import select
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from stillhouse.errors import ConfigError
from stillhouse.processes import GuardedProcess
from stillhouse.tools.sandbox.worker import Sandboxed
from stillhouse.types import JsonObject

__all__ = ["Sandbox", "SandboxFailed", "Sandboxed", "Source", "source_of"]

_LOAD_TIMEOUT_S: Final = 60.0
_ANSWER_GRACE_S: Final = 15.0
_PASSED_ON: Final = ("PATH", "LANG")

FailureKind = Literal["exception", "timeout", "killed"]


class SandboxFailed(Exception):
    """A call gave no result; the message says why, to follow the function's name where `kind` is not `exception`."""

    def __init__(self, kind: FailureKind, message: str) -> None:
        super().__init__(message)
        self.kind: FailureKind = kind


@dataclass(frozen=True, slots=True)
class Source:
    """Where a sandboxed function is found again: at the top of a Python file."""

    file: Path
    name: str


def source_of(function: Callable[..., Any]) -> Source:
    """Where the function stands.

    Raises:
        ValueError: it is not at the top of a Python file, or this is not Linux; the message says what to do.
    """
    if sys.platform != "linux":
        raise ValueError(f"sandbox=True needs Linux, this is {sys.platform}; leave it out, or run it in a container")
    file = Path(inspect.unwrap(function).__code__.co_filename)
    if function.__qualname__ != function.__name__ or not file.is_file():
        raise ValueError("sandbox=True needs a function at the top of a Python file, not inside another one")
    return Source(file.absolute(), function.__name__)


@dataclass(frozen=True, slots=True)
class _Server:
    process: GuardedProcess
    control: socket.socket


class Sandbox:
    """Runs functions of Python files in processes of their own; a server for each file starts with its first call.

    Args:
        environment: the environment variables that reach them, beside PATH, LANG and HOME.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self._servers: dict[Path, _Server] = {}
        self._lock = threading.Lock()

    async def load(self, files: Iterable[Path]) -> None:
        """Loads the files, so that what keeps one from loading shows before the first call.

        Raises:
            ConfigError: one cannot be loaded with the environment it is given.
        """
        for file in files:
            await asyncio.to_thread(self._server, file)

    async def call(self, source: Source, payload: JsonObject, timeout_s: float) -> Any:
        """What the function's `serve(payload)` gives; cancelled, it ends the worker and all it started.

        Raises:
            SandboxFailed: it raised, took too long, crashed or reached a limit.
        """
        try:
            server = self._running(source.file)
            if server is None:
                server = await asyncio.to_thread(self._server, source.file)
        except ConfigError as error:
            raise SandboxFailed("exception", str(error)) from error
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                socket.send_fds(server.control, [b"c"], [theirs.fileno()])
            except OSError as error:
                ours.close()
                raise SandboxFailed("killed", "could not start: its server ended") from error
        request = {"name": source.name, "payload": payload, "timeout_s": timeout_s}
        answer = await _exchange(ours, json.dumps(request).encode() + b"\n", timeout_s + _ANSWER_GRACE_S)
        if "kind" in answer:
            raise SandboxFailed(answer["kind"], answer["message"])
        return answer["value"]

    async def close(self) -> None:
        """Ends the servers; a later call starts another."""
        with self._lock:
            servers, self._servers = list(self._servers.values()), {}
        for server in servers:
            await asyncio.to_thread(_stop, server)

    def _running(self, file: Path) -> _Server | None:
        server = self._servers.get(file)
        return None if server is None or server.process.poll() is not None else server

    def _server(self, file: Path) -> _Server:
        with self._lock:
            server = self._running(file)
            if server is None:
                if file in self._servers:
                    _stop(self._servers.pop(file))
                server = self._servers[file] = self._start(file)
            return server

    def _start(self, file: Path) -> _Server:
        folder = tempfile.gettempdir()
        control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        environment = {
            **{name: os.environ[name] for name in _PASSED_ON if name in os.environ},
            **self._environment,
            "HOME": folder,
            "PYTHONPATH": os.pathsep.join(sys.path),
        }
        with theirs:
            process = GuardedProcess(
                "stillhouse.tools.sandbox",
                [str(file), str(theirs.fileno()), folder],
                environment,
                inherit_env=False,
                pass_fds=[theirs.fileno()],
            )
        server = _Server(process, control)
        try:
            _require_loaded(process, file)
        except BaseException:
            _stop(server)
            raise
        return server


async def _exchange(ours: socket.socket, request: bytes, timeout_s: float) -> JsonObject:
    reader, writer = await asyncio.open_unix_connection(sock=ours)
    try:
        async with asyncio.timeout(timeout_s):
            writer.write(request)
            await writer.drain()
            answer = await reader.read()
    except TimeoutError as error:
        raise SandboxFailed("killed", f"gave no sign of life for {timeout_s:g} s") from error
    except OSError:
        answer = b""
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
    if not answer:
        raise SandboxFailed("killed", "lost its supervisor")
    found: JsonObject = json.loads(answer)
    return found


def _require_loaded(process: GuardedProcess, file: Path) -> None:
    ready, _, _ = select.select([process.lines], [], [], _LOAD_TIMEOUT_S)
    line = process.lines.readline() if ready else ""
    if not line:
        how = "ended" if ready else f"is still loading after {_LOAD_TIMEOUT_S:g} s"
        raise ConfigError(f"{file}: cannot be loaded for the sandbox: its process {how}")
    problem = json.loads(line)
    if problem is not None:
        raise ConfigError(
            f"{problem}. The sandbox sees the environment variables that tools.environment names, no more"
        )


def _stop(server: _Server) -> None:
    server.control.close()
    server.process.stop()
