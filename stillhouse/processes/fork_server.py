"""A process that has imported torch once, and forks the children that need it instead of importing for seconds each.

`python -m stillhouse.processes.fork_server FD` reads requests from the socket FD. Each carries four open files: the
child's standard input, output and error, and a socket that tells its pid and later its exit code. A child that has
ended stays a zombie until the other end of that socket is closed, so that its pid cannot come to mean another process
while somebody may still signal it.
"""

import gc
import importlib
import json
import os
import select
import socket
import sys
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from setproctitle import getproctitle, setproctitle

from stillhouse.processes.guarded_process import run_guarded

_MAX_REQUEST_BYTES: Final = 1 << 20
_PRELOADED: Final = (
    *("torch", "transformers", "transformers.modeling_utils", "transformers.models.qwen3.modeling_qwen3"),
    *(
        "stillhouse.serving.server",
        "stillhouse.serving.app",
        "stillhouse.serving.models",
        "stillhouse.training.run_job",
    ),
)


@dataclass(eq=False)
class _Child:
    pid: int
    status: socket.socket
    pidfd: int
    has_ended: bool = False
    is_released: bool = False

    @property
    def files(self) -> tuple[int, int]:
        return self.pidfd, self.status.fileno()

    def close(self) -> None:
        os.close(self.pidfd)
        self.status.close()

    def tell(self, number: int) -> None:
        with suppress(BrokenPipeError):
            self.status.send(b"%d\n" % number)

    def tell_end(self) -> None:
        self.has_ended = True
        ended = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        assert ended is not None
        self.tell(ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status)


def serve(requests: socket.socket) -> str:
    """Fork a child for each request until the other end of the socket is closed, and then exit.

    In each child it returns the module to run, whose arguments are in `sys.argv`.
    """
    # It remembers where titles are kept, which nobody finds after the environment has been replaced.
    getproctitle()
    for module in _PRELOADED:
        if select.select([requests], [], [], 0)[0] and not requests.recv(1, socket.MSG_PEEK):
            os._exit(0)
        importlib.import_module(module)
    # Collections in the children would write to, and so copy, the pages they share.
    gc.freeze()
    children: dict[int, _Child] = {}
    poller = select.poll()
    poller.register(requests, select.POLLIN)
    while True:
        for file, _ in poller.poll():
            if file in children:
                _update(children[file], file, children, poller)
                continue
            request, files, _, _ = socket.recv_fds(requests, _MAX_REQUEST_BYTES, 4)
            if not request:
                os._exit(0)
            pid = os.fork()
            if pid == 0:
                requests.close()
                for child in set(children.values()):
                    child.close()
                return _become(json.loads(request), files)
            for shared in files[:3]:
                os.close(shared)
            child = _Child(pid, socket.socket(fileno=files[3]), os.pidfd_open(pid))
            for own in child.files:
                children[own] = child
                poller.register(own, select.POLLIN)
            child.tell(pid)


def _update(child: _Child, file: int, children: dict[int, _Child], poller: select.poll) -> None:
    """Note that the child has ended, or that its status is no longer wanted; after both, it is forgotten."""
    poller.unregister(file)
    if file == child.pidfd:
        child.tell_end()
    else:
        child.is_released = True
    if child.has_ended and child.is_released:
        for own in child.files:
            del children[own]
        os.waitpid(child.pid, 0)
        child.close()


def _become(request: dict[str, Any], files: list[int]) -> str:
    """Make this process the one that was requested; return its module."""
    os.setsid()
    for target, file in enumerate(files[:3]):
        os.dup2(file, target)
    for file in files:
        os.close(file)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    module: str = request["module"]
    sys.argv = [module, *request["args"]]
    setproctitle(" ".join([sys.executable, "-P", "-m", *sys.argv]))
    return module


if __name__ == "__main__":
    run_guarded(serve(socket.socket(fileno=int(sys.argv[1]))))
