"""Ctrl-C in a terminal, where the whole foreground process group gets the signal."""

import os
import pty
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from tests.deployments.processes import assert_gone

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
CLI = str(Path(sys.executable).parent / "stillhouse")


@pytest.fixture
def silent_teacher() -> Iterator[socket.socket]:
    """Yield an endpoint that takes requests and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(1)
        yield listener


@contextmanager
def _in_a_terminal(command: list[str], folder: Path) -> Iterator[tuple[int, int]]:
    """Yield the command in the foreground of a terminal of its own: its id and the terminal's other end."""
    # The run is to start a Prefect server of its own.
    env = {name: value for name, value in os.environ.items() if name != "PREFECT_API_URL"}
    env |= {"PREFECT_HOME": str(folder / "prefect"), "OPENAI_API_KEY": "any"}
    env["PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS"] = "600"
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(folder)
        os.execve(command[0], command, env)
    # What nobody reads would keep the command from writing more.
    reader = threading.Thread(target=_show, args=(terminal,))
    reader.start()
    try:
        yield child, terminal
    finally:
        with suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
        reader.join()
        os.close(terminal)


def _show(terminal: int) -> None:
    """Pass on what is written to a terminal, until the last process that has it open is gone."""
    with suppress(OSError):
        while data := os.read(terminal, 65536):
            sys.stdout.write(data.decode(errors="replace"))


def _first_request(teacher: socket.socket, child: int) -> socket.socket:
    """Return the connection of the first request, which comes when the flow is under way."""
    while os.waitpid(child, os.WNOHANG) == (0, 0):
        with suppress(TimeoutError):
            return teacher.accept()[0]
    pytest.fail("it ended before it asked the teacher")


def _exit_code(child: int) -> int:
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.1)
    pytest.fail("still there four minutes after Ctrl-C")


def test_a_run_with_a_server_of_its_own_ends_at_once_and_leaves_no_process(
    tmp_path: Path, silent_teacher: socket.socket
) -> None:
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "What is 1 + 1?"}\n')
    url = f"http://127.0.0.1:{silent_teacher.getsockname()[1]}/v1"
    command = [CLI, "generate", "prompts.jsonl", "-m", "m", "--base-url", url, "--set", "tracking.enabled=false"]
    with _in_a_terminal(command, tmp_path) as (child, terminal):
        connection = _first_request(silent_teacher, child)
        family = psutil.Process(child).children(recursive=True)
        assert family, "a Prefect server was expected to run"
        os.write(terminal, b"\x03")
        assert _exit_code(child) in {1, 130, -signal.SIGINT}
        connection.close()
        assert_gone(family)
