"""The end of a process that has imported torch: freeing every module, which Python does last, takes seconds."""

import atexit
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress


@contextmanager
def without_teardown() -> Iterator[None]:
    """Around a process's main function: it ends right after what was registered with `atexit` inside the block.

    Threads that are waited for, and functions registered with `atexit`, have their turn as ever, so that what they
    flush is written. The exit code is that of the SystemExit which leaves the block, or 0; any other exception, and
    the end that follows it, is left to Python.
    """
    exit_codes: list[int] = []

    def leave() -> None:
        if exit_codes:
            logging.shutdown()
            for stream in (sys.stdout, sys.stderr):
                # Whoever read it may be gone.
                with suppress(OSError, ValueError):
                    stream.flush()
            os._exit(exit_codes[0])

    # What is registered first is called last.
    atexit.register(leave)
    try:
        yield
    except SystemExit as end:
        # Python prints any other value, and takes it for a failure.
        exit_codes.append(end.code if isinstance(end.code, int) else int(end.code is not None))
        raise
    exit_codes.append(0)
