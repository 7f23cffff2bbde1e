"""The process that has a user's file loaded and forks for each call."""

import gc
import json
import os
import signal
import socket
import sys
from pathlib import Path

from stillhouse.errors import ConfigError
from stillhouse.processes import die_with_parent
from stillhouse.tools.sandbox.supervisor import supervise
from stillhouse.tools.user_file import load_module


def main() -> None:
    """Serves calls until the control socket closes.

    Arguments: the file, the number of the control socket, the folder that temporary ones are made in. The first line
    on standard output is JSON: null when the file is loaded, or why it cannot be.
    """
    die_with_parent()
    # The path of the caller's modules came this way; it is no variable for tools to see.
    os.environ.pop("PYTHONPATH", None)
    path, control, folder = Path(sys.argv[1]), socket.socket(fileno=int(sys.argv[2])), sys.argv[3]
    told = os.fdopen(os.dup(1), "w")
    # What the file prints must not be taken for the first line.
    os.dup2(2, 1)
    try:
        module = load_module(path, "the sandbox")
    except ConfigError as error:
        print(json.dumps(str(error)), file=told, flush=True)
        return
    # Supervisors are not waited for. The file's own import may have needed the default.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    # Collected now and never touched again, its pages stay shared with all forks.
    gc.collect()
    gc.freeze()
    print("null", file=told, flush=True)
    told.close()
    while True:
        _, handles, _, _ = socket.recv_fds(control, 1, 1)
        if not handles:
            return
        with socket.socket(fileno=handles[0]) as call:
            if os.fork() == 0:
                control.close()
                supervise(call, vars(module), folder)
