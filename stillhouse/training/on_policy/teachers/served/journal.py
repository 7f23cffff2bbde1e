"""The journal of scores: what a teacher's server answered, durable before it is used.

A training that was killed asks for nothing twice, and what it continues with is to the bit what it was told before.
"""

import hashlib
import sqlite3
import threading
from array import array
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from stillhouse.errors import StoreError
from stillhouse.training.on_policy.scored import TeacherView

_TABLE: Final = "CREATE TABLE IF NOT EXISTS score (key BLOB PRIMARY KEY, logprobs BLOB NOT NULL) WITHOUT ROWID"
_LOCK_TIMEOUT_S: Final = 60.0


class ScoreJournal:
    """Log-probabilities by who gave them and for what.

    Args:
        path: the SQLite file; made with its folder where it is missing.
        identity: of the teacher and all else that its answers depend on, such as the temperature.

    Raises:
        StoreError: it cannot be opened.
    """

    def __init__(self, path: Path, identity: str) -> None:
        self._path = path
        self._identity = identity.encode()
        self._lock = threading.Lock()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = sqlite3.connect(path, timeout=_LOCK_TIMEOUT_S, check_same_thread=False)
            self._file.execute("PRAGMA journal_mode = WAL")
            # What is committed outlives the process; to outlive a loss of power would cost a wait for each answer.
            self._file.execute("PRAGMA synchronous = NORMAL")
            with self._file:
                self._file.execute(_TABLE)
        except (OSError, sqlite3.Error) as error:
            raise self._error("opened", error) from error

    def key(self, view: TeacherView) -> bytes:
        """Of what a teacher reads and which tokens of it are scored."""
        hasher = hashlib.sha256(len(self._identity).to_bytes(8, "little") + self._identity)
        hasher.update(array("q", view.token_ids).tobytes())
        hasher.update(bytes(view.loss_mask))
        return hasher.digest()

    def find(self, keys: Sequence[bytes]) -> dict[bytes, list[float]]:
        """What is known of `keys`: log-probabilities of the scored tokens, in order.

        Raises:
            StoreError: the file cannot be read.
        """
        try:
            with self._lock:
                rows = [
                    self._file.execute("SELECT logprobs FROM score WHERE key = ?", (key,)).fetchone() for key in keys
                ]
        except sqlite3.Error as error:
            raise self._error("read", error) from error
        return {key: array("d", row[0]).tolist() for key, row in zip(keys, rows, strict=True) if row is not None}

    def put(self, answers: Mapping[bytes, Sequence[float]]) -> None:
        """Makes answers durable.

        Raises:
            StoreError: they cannot be written.
        """
        rows = [(key, array("d", logprobs).tobytes()) for key, logprobs in answers.items()]
        try:
            with self._lock, self._file:
                self._file.executemany("INSERT OR IGNORE INTO score VALUES (?, ?)", rows)
        except sqlite3.Error as error:
            raise self._error("written", error) from error

    def close(self) -> None:
        """Closes the file."""
        with self._lock:
            self._file.close()

    def _error(self, verb: str, error: Exception) -> StoreError:
        return StoreError(
            f"journal of scores {self._path}: cannot be {verb}: {error}. Free some space or mend the permissions "
            "there; if the file is no SQLite database any more, move it away. Then run the same command again"
        )
