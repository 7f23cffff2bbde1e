"""The server of the verifier `python`. Argument: the number of the control socket."""

import socket
import sys

from stillhouse.sandbox.server import ForkServer
from stillhouse.verification.code.judge import judge

if __name__ == "__main__":
    ForkServer().serve(socket.socket(fileno=int(sys.argv[1])), judge)
