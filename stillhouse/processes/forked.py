"""Children forked from a process that has imported torch (`fork_server`), each in milliseconds.

Only where a fork is safe: on Linux, without a GPU, whose driver does not survive one. Libraries read environment
variables while they are imported, so the server is replaced as soon as one of these has changed.
"""

import atexit
import json
import logging
import os
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Final

logger = logging.getLogger(__name__)

_GPU_DEVICES: Final = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")
_READ_WHEN_USED: Final = ("PREFECT_", "MLFLOW_", "STILLHOUSE_", "PYTEST_", "TOKENIZERS_PARALLELISM", "PWD", "OLDPWD")
"""How variables begin that nothing reads while torch, transformers and the modules of Stillhouse are imported."""


class ForkedChild:
    """A child with what `GuardedProcess` needs of `subprocess.Popen`. Safe to use from several threads.

    Raises ConnectionError if the server ended before it forked.
    """

    def __init__(self, status: socket.socket, stdin: IO[str], stdout: IO[str]) -> None:
        self.stdin = stdin
        self.stdout = stdout
        self._status = status
        self._lock = threading.Lock()
        self._code: int | None = None
        pid = self._read()
        if pid is None:
            raise ConnectionError("the fork server has ended")
        self.pid = pid
        self._pidfd = os.pidfd_open(pid)

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal; None while the child runs."""
        with self._lock:
            if self._code is None and select.select([self._pidfd], [], [], 0)[0]:
                code = self._read()
                # Of a child whose server was killed, nobody can learn it any more.
                self._code = 1 if code is None else code
            return self._code

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code; raise subprocess.TimeoutExpired if there is none after `timeout` seconds."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            left_s = None if deadline is None else max(0.0, deadline - time.monotonic())
            if not select.select([self._pidfd], [], [], left_s)[0]:
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
        return code

    def release(self) -> None:
        """Let the pid of a child that has ended be given to another process, and wait until it is."""
        with self._lock, self._status:
            if self._status.fileno() >= 0:
                os.close(self._pidfd)
                self._status.shutdown(socket.SHUT_WR)
                self._status.recv(1)

    def _read(self) -> int | None:
        """Return the next number from the server; None if the server has ended."""
        line = b""
        while not line.endswith(b"\n"):
            byte = self._status.recv(1)
            if not byte:
                return None
            line += byte
        return int(line)


class _ForkServer:
    def __init__(self, imported_with: Mapping[str, str], environment: Mapping[str, str]) -> None:
        self.imported_with = imported_with
        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "stillhouse.processes.fork_server", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                start_new_session=True,
                env=environment,
                pass_fds=[theirs.fileno()],
            )
        # Not when this module is imported: `without_teardown` calls only what is registered while the program runs.
        atexit.register(self.close)

    def fork(self, module: str, args: Sequence[str], environment: Mapping[str, str]) -> ForkedChild:
        request = {"module": module, "args": args, "environment": environment, "folder": os.getcwd()}
        status, server_status = socket.socketpair()
        child_stdin, stdin = os.pipe()
        stdout, child_stdout = os.pipe()
        with open(child_stdin), open(child_stdout, "w"), server_status, ExitStack() as ours:
            ours.push(status)
            files = [ours.enter_context(open(stdin, "w")), ours.enter_context(open(stdout))]
            shared = [child_stdin, child_stdout, 2, server_status.fileno()]
            socket.send_fds(self._requests, [json.dumps(request).encode()], shared)
            # Else the end of a server that dies would not be seen.
            server_status.close()
            child = ForkedChild(status, *files)
            ours.pop_all()
        return child

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def close(self) -> None:
        """End the server; its children go on. Safe to call twice."""
        self._requests.close()
        self._process.kill()
        self._process.wait()


_server: _ForkServer | None = None
_lock = threading.Lock()


def can_fork(gpu_devices: Iterable[str] = _GPU_DEVICES) -> bool:
    """Return whether children may be forked on this machine."""
    if sys.platform != "linux" or any(Path(device).exists() for device in gpu_devices):
        return False
    try:
        # Refused by kernels before 5.3 and by the profiles of some containers.
        os.close(os.pidfd_open(os.getpid()))
    except OSError:
        return False
    return True


def fork_child(module: str, args: Sequence[str], environment: Mapping[str, str]) -> ForkedChild | None:
    """Return a child that runs `python -m MODULE ARGS`, with no environment variables but the given ones.

    Blocks while the server imports torch, which it does once. None if the server does not come up: the caller starts
    the child by itself.
    """
    global _server
    imported_with = {name: value for name, value in environment.items() if not name.startswith(_READ_WHEN_USED)}
    with _lock:
        if _server is not None and (_server.imported_with != imported_with or not _server.is_alive):
            _server.close()
            _server = None
        try:
            _server = _server or _ForkServer(imported_with, environment)
            return _server.fork(module, args, environment)
        except OSError as error:
            logger.debug("no child can be forked: %s", error)
            return None
