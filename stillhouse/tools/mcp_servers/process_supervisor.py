"""Runs an MCP server in a bare environment and ends it with the run.

    python -I -S process_supervisor.py NAME,NAME COMMAND [ARGUMENT ...]

Started in a session of its own. The server inherits standard input and output, and only the named environment variables
(the mcp package passes more). When the server or the run ends, in whatever way, the whole process group is killed. Uses
the standard library alone, since it is started for every session and should cost milliseconds.
"""

import os
import signal
import subprocess
import sys
import threading
import time

_CHECK_EVERY_S = 0.5


def main() -> None:
    """Hold the server until it, or the run, ends."""
    names, command = sys.argv[1].split(","), sys.argv[2:]
    run = os.getppid()
    try:
        server = subprocess.Popen(command, env={name: os.environ[name] for name in names if name in os.environ})
    except OSError as error:
        sys.exit(f"{command[0]}: {error.strerror}")
    threading.Thread(target=_watch, args=(run,), daemon=True).start()
    server.wait()
    # What the server started and left behind is in its group, and so is this process.
    os.killpg(0, signal.SIGKILL)


def _watch(run: int) -> None:
    while os.getppid() == run:
        time.sleep(_CHECK_EVERY_S)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main()
