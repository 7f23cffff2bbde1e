"""Runs a function of a user's file in a jail: `@tool(sandbox=True)`, `@reward(sandbox=True)`. Linux only.

The file is loaded once, outside the jail, by a fork server that sees PATH, LANG, HOME and the variables named in
`tools.environment`; each call then runs in a jail of its own, as `stillhouse.sandbox` describes. It starts in an empty
folder, its HOME, which is deleted at its end. It reaches the network and files only if the decorator names them
(`network=True`, `files=[...]`). What a call prints is dropped. Arguments and result are passed as JSON.
"""

import asyncio
import inspect
import json
import math
import socket
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stillhouse.errors import ConfigError
from stillhouse.sandbox.client import ANSWER_GRACE_S, JailFailed, SandboxServer, ServerUnavailable, read_answer
from stillhouse.sandbox.jail import SCRATCH, Permissions
from stillhouse.sandbox.supervisor import CallLimits
from stillhouse.types import JsonObject


@dataclass(frozen=True, slots=True)
class SandboxedFunction:
    """A function at the top level of a Python file, and what its calls may access."""

    file: Path
    name: str
    permissions: Permissions


def sandboxed_function(
    function: Callable[..., Any], *, sandbox: bool, network: bool, files: Sequence[str]
) -> SandboxedFunction | None:
    """Return the function as a sandbox finds it, with the options of its decorator; None if it runs in this process.

    Raise ValueError, which says what to do, if it is not at the top level of a Python file, a file is missing, network
    or files are given without a sandbox, or this is not Linux.
    """
    if not sandbox:
        if network or files:
            raise ValueError("network and files are what a sandbox lets through; write sandbox=True beside them")
        return None
    if sys.platform != "linux":
        raise ValueError(f"sandbox=True needs Linux, this is {sys.platform}; leave it out, or run it in a container")
    file = Path(inspect.unwrap(function).__code__.co_filename)
    if function.__qualname__ != function.__name__ or not file.is_file():
        raise ValueError("sandbox=True needs a function at the top of a Python file, not inside another one")
    file = file.absolute()
    readable = [file.parent / Path(name).expanduser() for name in files]
    for path in readable:
        if not path.exists():
            raise ValueError(f"files names {path}, which does not exist; create it, or take it out")
    return SandboxedFunction(file, function.__name__, Permissions(network, tuple(map(str, readable))))


class Sandbox:
    """Runs functions of Python files in jails; a server for each file starts with its first call.

    They see PATH, LANG, HOME and the variables of `environment`.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = {**environment, "HOME": SCRATCH}
        self._servers: dict[Path, SandboxServer] = {}

    async def load(self, functions: Iterable[SandboxedFunction | None]) -> None:
        """Start the servers of the functions' files; raise ConfigError if one does not load, or no jail can be made."""
        for function in functions:
            if function is not None:
                await self._start(function.file)

    async def call(self, function: SandboxedFunction, payload: JsonObject, timeout_s: float) -> Any:
        """Return what the function's `serve(payload)` does; cancelling ends its process and all it started.

        Raise JailFailed if it raised, took too long, crashed or reached a limit, or no jail can be made here; its
        message follows the function's name unless the kind is `exception`.
        """
        try:
            server = await self._start(function.file)
        except ConfigError as error:
            raise JailFailed("exception", str(error)) from error
        request = json.dumps({"name": function.name, "payload": payload}).encode() + b"\n"
        try:
            call = server.open_call(CallLimits(timeout_s, math.ceil(timeout_s), function.permissions))
            return read_answer(await _exchange(call, request, timeout_s + ANSWER_GRACE_S))["value"]
        except JailFailed as error:
            if error.kind == "no_jail":
                raise JailFailed("no_jail", f"was not run: {error}") from error
            raise

    async def close(self) -> None:
        """End the servers; a later call starts another."""
        for server in list(self._servers.values()):
            await asyncio.to_thread(server.close)

    async def _start(self, file: Path) -> SandboxServer:
        """Return the file's server, which runs now; raise ConfigError if it cannot."""
        server = self._servers.setdefault(
            file, SandboxServer("stillhouse.tools.sandbox_worker", [str(file)], self._environment)
        )
        try:
            await asyncio.to_thread(server.start)
        except ServerUnavailable as error:
            raise ConfigError(f"{file}: cannot be served by the sandbox: {error}") from error
        return server


async def _exchange(call: socket.socket, request: bytes, timeout_s: float) -> bytes:
    reader, writer = await asyncio.open_unix_connection(sock=call)
    try:
        async with asyncio.timeout(timeout_s):
            writer.write(request)
            await writer.drain()
            return await reader.read()
    except TimeoutError as error:
        raise JailFailed("lost", f"gave no sign of life for {timeout_s:g} s") from error
    except OSError:
        return b""
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
