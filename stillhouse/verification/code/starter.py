"""Processes for an answer, in a process namespace below that of the tests, which they cannot see."""

import os
import signal
import socket
import struct
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection, Pipe
from typing import Final, NoReturn

from stillhouse.sandbox.jail import drop_privileges, run_child
from stillhouse.sandbox.supervisor import close_other_files
from stillhouse.sandbox.syscalls import CLONE_NEWPID, return_to_own_processes, unshare
from stillhouse.verification.code.answer import run_answer

_STATUS: Final = struct.Struct("i")


class Starter:
    """Starts the processes of an answer, one at a time.

    Made before anything of the question is read, it keeps a process whose memory holds none of it, and forks that. The
    caller still has its privileges in the jail then, and drops them afterwards.
    """

    def __init__(self) -> None:
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        """Becomes readable once the answer's process has ended."""
        unshare(CLONE_NEWPID)
        if os.fork() == 0:
            _start_on_request(theirs)
        theirs.close()
        return_to_own_processes()

    def start(self, *files: int) -> Connection:
        """Starts `run_answer` in a new process and returns the channel to it.

        Args:
            files: its standard input and output; none if empty.
        """
        ours, theirs = Pipe()
        with theirs:
            socket.send_fds(self.control, [b"s"], [theirs.fileno(), *files])
        return ours

    def exit_code(self) -> int:
        """Waits for the process to end; the number of a signal that killed it is below 0."""
        status = self.control.recv(_STATUS.size)
        return int(_STATUS.unpack(status)[0]) if len(status) == _STATUS.size else -signal.SIGKILL


def _start_on_request(control: socket.socket) -> NoReturn:
    try:
        close_other_files(control.fileno())
        drop_privileges()
        # Process 1 ignores what it does not handle.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        while True:
            _, files, _, _ = socket.recv_fds(control, 1, 3)
            if not files:
                break
            code = run_child(partial(_run, control, *files), int)
            for number in files:
                os.close(number)
            # What the code left running.
            with suppress(ProcessLookupError):
                os.kill(-1, signal.SIGKILL)
            control.send(_STATUS.pack(code))
    finally:
        os._exit(0)


def _run(control: socket.socket, channel: int, *streams: int) -> int:
    control.close()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    return run_answer(Connection(channel))
