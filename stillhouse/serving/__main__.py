"""`python -m stillhouse.serving OPTIONS`: the server as a process of its own; people start it by `stillhouse serve`."""

import json
import os
import sys

from stillhouse.errors import StillhouseError
from stillhouse.processes.exit import without_teardown
from stillhouse.processes.gc_tuning import rarely_collected


def main(options: str) -> int:
    """Serve until told to stop, and return the exit code.

    `options` is a JSON object of the arguments of `server.serve`, and of `log_file`, which errors and warnings are
    appended to instead of standard error.
    """
    settings = json.loads(options)
    if log_file := settings.pop("log_file", None):
        # Everything said on the way to a failure belongs in the log, also by libraries that write to the descriptor.
        with open(log_file, "ab", buffering=0) as log:
            os.dup2(log.fileno(), sys.stderr.fileno())
    try:
        with rarely_collected():
            from stillhouse.serving.server import serve

        serve(**settings)
    except StillhouseError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    except KeyboardInterrupt:
        return 0
    return 0


if __name__ == "__main__":
    with without_teardown():
        sys.exit(main(sys.argv[1]))
