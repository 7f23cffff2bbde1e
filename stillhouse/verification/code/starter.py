"""Processes for an answer, in a process namespace below that of the tests, which they cannot see."""

import os
import signal
import socket
import struct
from contextlib import suppress
from typing import Final, NoReturn

from stillhouse.sandbox.child import fork_child, wait_for_child
from stillhouse.sandbox.jail import drop_privileges
from stillhouse.sandbox.limits import MAX_PROCESSES
from stillhouse.sandbox.supervisor import close_other_files
from stillhouse.sandbox.syscalls import CLONE_NEWPID, return_to_own_processes, unshare
from stillhouse.verification.code.answer import run_answer
from stillhouse.verification.code.channel import MessageChannel

_STATUS: Final = struct.Struct("i")


class Starter:
    """Starts the processes of an answer, one at a time.

    Made before anything of the question is read, it keeps a process whose memory holds none of it, and forks that. The
    caller still has its privileges in the jail then, and drops them afterwards.
    """

    def __init__(self) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        unshare(CLONE_NEWPID)
        if os.fork() == 0:
            _start_on_request(theirs)
        theirs.close()
        return_to_own_processes()

    def start(self, *files: int) -> MessageChannel:
        """Starts `run_answer` in a new process and returns the channel to it.

        Args:
            files: its standard input and output; none if empty.
        """
        ours, theirs = socket.socketpair()
        with theirs:
            socket.send_fds(self._control, [b"s"], [theirs.fileno(), *files])
        return MessageChannel(ours, self._control)

    def exit_code(self) -> int:
        """Waits for the process to end; the number of a signal that killed it is below 0."""
        status = self._control.recv(_STATUS.size)
        return int(_STATUS.unpack(status)[0]) if len(status) == _STATUS.size else -signal.SIGKILL


def _start_on_request(control: socket.socket) -> NoReturn:
    try:
        close_other_files(control.fileno())
        drop_privileges(MAX_PROCESSES)
        # Process 1 ignores what it does not handle.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        while True:
            _, files, _, _ = socket.recv_fds(control, 1, 3)
            if not files:
                break
            child = _fork_answer(control, files)
            for number in files:
                os.close(number)
            code = wait_for_child(child)
            # What the code left running.
            with suppress(ProcessLookupError):
                os.kill(-1, signal.SIGKILL)
            control.send(_STATUS.pack(code))
    finally:
        os._exit(0)


def _fork_answer(control: socket.socket, files: list[int]) -> int:
    def run() -> int:
        control.close()
        channel, *streams = files
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        return run_answer(MessageChannel(socket.socket(fileno=channel)))

    return fork_child(run, lambda code: code)
