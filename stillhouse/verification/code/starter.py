"""Processes for an answer, in a process namespace below that of the tests, which they cannot see."""

import os
import signal
import socket
import struct
from contextlib import suppress
from typing import Final, NoReturn

from stillhouse.sandbox.jail import give_up_power
from stillhouse.sandbox.limits import MAX_PROCESSES
from stillhouse.sandbox.supervisor import keep_only
from stillhouse.sandbox.syscalls import CLONE_NEWPID, return_to_own_processes, unshare
from stillhouse.verification.code.answer import run_answer
from stillhouse.verification.code.line import Line

_STATUS: Final = struct.Struct("i")


class Starter:
    """Starts the processes of an answer, one at a time.

    Made before anything of the question is read, it keeps a process whose memory holds none of it, and forks that. The
    caller has power over its jail then, and gives it up afterwards.
    """

    def __init__(self) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        unshare(CLONE_NEWPID)
        if os.fork() == 0:
            _start_on_request(theirs)
        theirs.close()
        return_to_own_processes()

    def start(self, *files: int) -> Line:
        """Starts `run_answer` in a process of its own, and gives the line to it.

        Args:
            files: what it has as standard input and output; nothing without.
        """
        ours, theirs = socket.socketpair()
        with theirs:
            socket.send_fds(self._control, [b"s"], [theirs.fileno(), *files])
        return Line(ours, self._control)

    def exit_code(self) -> int:
        """Waits for the process to end; the number of a signal that killed it is below 0."""
        status = self._control.recv(_STATUS.size)
        return int(_STATUS.unpack(status)[0]) if len(status) == _STATUS.size else -signal.SIGKILL


def _start_on_request(control: socket.socket) -> NoReturn:
    try:
        keep_only(control.fileno())
        give_up_power(MAX_PROCESSES)
        # Process 1 ignores what it does not handle.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        while True:
            _, files, _, _ = socket.recv_fds(control, 1, 3)
            if not files:
                break
            child = os.fork()
            if child == 0:
                control.close()
                _run(files)
            for number in files:
                os.close(number)
            control.send(_STATUS.pack(_wait_for(child)))
    finally:
        os._exit(0)


def _run(files: list[int]) -> NoReturn:
    status = 1
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        line, *streams = files
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        process = os.getpid()
        status = run_answer(Line(socket.socket(fileno=line)))
        if os.getpid() != process:
            # What the code forked comes by here as well.
            status = 1
    finally:
        os._exit(status)


def _wait_for(child: int) -> int:
    """The child's exit code; what it leaves running is killed."""
    while True:
        pid, status = os.wait()
        if pid == child:
            break
    with suppress(ProcessLookupError):
        os.kill(-1, signal.SIGKILL)
    return os.waitstatus_to_exitcode(status)
