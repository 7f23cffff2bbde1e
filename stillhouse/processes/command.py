"""`python -m stillhouse.processes.command LOG COMMAND...`: another program's command, run as a guarded module.

Its output is appended to LOG. Variables that are about this Python are not passed on, as the command may be of another,
and no Python takes a module from the working directory, such as a user's own vllm.py.
"""

import os
import signal
import subprocess
import sys


def main(log_file: str, *command: str) -> int:
    """Return the exit code, as a shell gives it, once the command has ended; it gets the group's signals by itself."""
    for number in (signal.SIGINT, signal.SIGTERM):
        # A handler, since a signal that is ignored would be ignored by the command as well.
        signal.signal(number, lambda *_: None)
    variables = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    variables["PYTHONSAFEPATH"] = "1"
    with open(log_file, "ab", buffering=0) as log:
        try:
            code = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=variables).wait()
        except OSError as error:
            log.write(f"{error}\n".encode())
            return 127
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
