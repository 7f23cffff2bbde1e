"""The server of a user's file. Arguments: the file, the number of the control socket."""

import socket
import sys
from pathlib import Path

from stillhouse.errors import ConfigError
from stillhouse.sandbox.server import Opening, problem_with_jail
from stillhouse.tools.sandbox.worker import worker_of
from stillhouse.tools.user_file import load_module


def main() -> None:
    """Loads the file and serves calls until the control socket closes."""
    opening = Opening()
    problem = problem_with_jail()
    if problem is not None:
        opening.refuse(f"sandbox=True cannot be kept here: {problem}")
        return
    try:
        module = load_module(Path(sys.argv[1]), "the sandbox")
    except ConfigError as error:
        opening.refuse(f"{error}. The sandbox sees the environment variables that tools.environment names, no more")
        return
    opening.serve(socket.socket(fileno=int(sys.argv[2])), worker_of(vars(module)))


main()
