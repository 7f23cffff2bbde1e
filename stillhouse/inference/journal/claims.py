"""Claims: which rollouts a journal runs, visible to every other journal on the same file.

A claim is a lock on one byte of an empty file beside the journal, at an offset made of the rollout key. The kernel owns
it: it ends with the process, also by kill -9, so there is no time-out and nothing to clean up. These are "open file
description" locks (fcntl(2), F_OFD_SETLK): two journals in one process exclude each other as two processes do. A child
that is forked without exec while claims are held shares them until it ends.
"""

import fcntl
import os
import struct
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

from stillhouse.store.private import private_file, private_folder

# The kernel walks the locks of a file one by one: with 1,000 held, to take and free another costs 13 us in one file
# (36 us with 4,000) and 4 us in eight.
_NUM_FILES: Final = 8
# `struct flock` of fcntl(2): type, whence, start, length, pid on Linux; start, length, pid, type, whence on macOS.
_FLOCK: Final = struct.Struct("qqihh" if sys.platform == "darwin" else "hhqqi4x")


class Claims:
    """The claims of one journal, as locks on files in `folder`; raises OSError if they cannot be made."""

    def __init__(self, folder: Path) -> None:
        private_folder(folder)
        self._files: list[int] = []
        try:
            for index in range(_NUM_FILES):
                private_file(folder / str(index))
                self._files.append(os.open(folder / str(index), os.O_RDWR))
        except OSError:
            self.close()
            raise

    def take(self, rollout_key: bytes) -> bool:
        """Return whether the rollout is this journal's now, or was; raise OSError where there are no such locks."""
        try:
            self._lock(rollout_key, fcntl.F_WRLCK)
        # fcntl(2): held by another, by either name.
        except (BlockingIOError, PermissionError):
            return False
        return True

    def free(self, rollout_key: bytes) -> None:
        self._lock(rollout_key, fcntl.F_UNLCK)

    def close(self) -> None:
        while self._files:
            with suppress(OSError):
                os.close(self._files.pop())

    def _lock(self, rollout_key: bytes, kind: int) -> None:
        # 62 bits: an offset is signed, and its byte needs an end.
        offset = int.from_bytes(rollout_key[:8], "big") >> 2
        if sys.platform == "darwin":
            request = _FLOCK.pack(offset, 1, 0, kind, os.SEEK_SET)
        else:
            request = _FLOCK.pack(kind, os.SEEK_SET, offset, 1, 0)
        fcntl.fcntl(self._files[rollout_key[8] % _NUM_FILES], fcntl.F_OFD_SETLK, request)
