"""Two names that swap what they stand for, in one step: renameat2(2), for which Python has no function of its own."""

import ctypes
import os
from pathlib import Path
from typing import Final

# From linux/fcntl.h and linux/fs.h.
_AT_FDCWD: Final = -100
_RENAME_EXCHANGE: Final = 2


def exchange(first: Path, second: Path) -> None:
    """Gives each of two files or folders the name of the other; a reader finds both names at every moment.

    Raises:
        OSError: one is missing, or the system or the file system cannot do it.
    """
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except AttributeError as error:
        raise OSError("this system cannot exchange names") from error
    if renameat2(_AT_FDCWD, os.fsencode(first), _AT_FDCWD, os.fsencode(second), _RENAME_EXCHANGE) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(first), None, str(second))
