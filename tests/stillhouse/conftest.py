"""Writers that are killed while they write, again and again."""

import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from itertools import count
from typing import Final

import pytest

KillWriters = Callable[..., Iterator[int]]

# What is imported once serves every writer: each is a fork, which takes milliseconds.
_FORKS: Final = textwrap.dedent("""
    import os, sys
    from itertools import count

    for line in sys.stdin:
        writer = os.fork()
        if writer == 0:
            for number in count(int(line)):
                write(number)
        print(writer, flush=True)
        assert os.waitpid(writer, 0)[1] == 9, "the writer ended by itself"
        print("dead", flush=True)
""")


@pytest.fixture(scope="session")
def kill_writers() -> KillWriters:
    """Yields after each of `num_kills` SIGKILLs.

    A process calls `write(number)` of `program` over and over, with numbers that count up, until it is killed at a
    moment drawn from `longest_s` seconds and the next one starts. `args` are the program's arguments.
    """

    def kill(program: str, *args: object, num_kills: int, longest_s: float, seed: int) -> Iterator[int]:
        chance = random.Random(seed)
        command = [sys.executable, "-c", textwrap.dedent(program) + _FORKS, *map(str, args)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as forks:
            assert forks.stdin is not None
            assert forks.stdout is not None
            for number, _ in zip(count(), range(num_kills), strict=False):
                forks.stdin.write(f"{number}\n")
                forks.stdin.flush()
                writer = int(forks.stdout.readline())
                time.sleep(chance.uniform(0, longest_s))
                os.kill(writer, signal.SIGKILL)
                assert forks.stdout.readline() == "dead\n"
                yield number

    return kill
