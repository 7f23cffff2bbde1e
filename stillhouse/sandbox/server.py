"""The process that has loaded what there is to run, and forks for each call."""

import gc
import json
import os
import signal
import socket

from stillhouse.processes.children import die_with_parent
from stillhouse.sandbox.jail import Door, Permits, give_up_power
from stillhouse.sandbox.limits import MAX_PROCESSES
from stillhouse.sandbox.root import interpreter_paths
from stillhouse.sandbox.supervisor import Terms, Work, supervise
from stillhouse.sandbox.syscalls import NoJail
from stillhouse.types import JsonObject


class Opening:
    """The start of a server: standard output says whether it is ready, and nothing that is loaded can print there.

    The first line on standard output is JSON: null when calls are served, or why they cannot be.
    """

    def __init__(self) -> None:
        die_with_parent()
        # The path of the caller's modules came this way; it is no variable for the code to see.
        os.environ.pop("PYTHONPATH", None)
        self._ready = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)

    def refuse(self, problem: str) -> None:
        """Says why no call can be served."""
        self._say(problem)

    def serve(self, control: socket.socket, work: Work) -> None:
        """Says that calls are served, and serves them until the caller closes `control`.

        Args:
            control: brings a packet for each call: the `Terms` as JSON, and the socket of the call.
            work: runs in each call's jail.
        """
        # Supervisors are not waited for. What was loaded may have needed the default.
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        interpreter_paths()
        # Collected now and never touched again, its pages stay shared with all forks.
        gc.collect()
        gc.freeze()
        self._say(None)
        while True:
            packet, handles, _, _ = socket.recv_fds(control, 1 << 16, 1)
            if not handles:
                return
            with socket.socket(fileno=handles[0]) as call:
                if os.fork() == 0:
                    control.close()
                    supervise(call, _terms(json.loads(packet)), work)

    def _say(self, problem: str | None) -> None:
        with self._ready:
            print(json.dumps(problem), file=self._ready, flush=True)


def problem_with_jail() -> str | None:
    """Why no jail can be made here; None where one can."""
    problems, problem = os.pipe()
    door = Door()
    child = os.fork()
    if child == 0:
        os.close(problems)
        try:
            door.enter(Permits())
            inside = os.fork()
            if inside == 0:
                _try(problem)
            os.waitpid(inside, 0)
        except NoJail as error:
            os.write(problem, str(error).encode())
        finally:
            os._exit(0)
    os.close(problem)
    door.hold(child)
    with os.fdopen(problems, "rb") as file:
        said = file.read().decode()
    os.waitpid(child, 0)
    return said or None


def _try(problem: int) -> None:
    try:
        give_up_power(MAX_PROCESSES)
    except NoJail as error:
        os.write(problem, str(error).encode())
    finally:
        os._exit(0)


def _terms(packet: JsonObject) -> Terms:
    permits = Permits(packet["network"], tuple(packet["files"]))
    return Terms(packet["timeout_s"], packet["max_cpu_s"], permits)
