import subprocess
import sys

import pytest

PROGRAM = """
import atexit, sys, threading, time
from stillhouse.processes.exit import without_teardown

class Heavy:
    def __del__(self):
        print("torn down", flush=True)

def main():
    atexit.register(print, "registered")
    threading.Thread(target=lambda: (time.sleep(0.2), print("waited for"))).start()
    sys.stdout.write("no newline at the end, ")
    {end}

heavy = Heavy()
with without_teardown():
    main()
"""


def run(end: str) -> subprocess.CompletedProcess[str]:
    program = PROGRAM.format(end=end)
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=240, check=False)


@pytest.mark.parametrize(
    ("end", "code"), [("pass", 0), ("sys.exit()", 0), ("sys.exit(2)", 2), ("sys.exit('a message')", 1)]
)
def test_threads_and_exit_functions_have_their_turn_and_nothing_is_torn_down(end: str, code: int) -> None:
    done = run(end)
    assert (done.returncode, done.stdout) == (code, "no newline at the end, waited for\nregistered\n")
    assert ("a message" in done.stderr) == ("message" in end)


def test_an_exception_ends_the_process_as_ever() -> None:
    done = run("raise ValueError('why')")
    assert done.returncode == 1
    assert "ValueError: why" in done.stderr
    assert done.stdout.endswith("torn down\n")
