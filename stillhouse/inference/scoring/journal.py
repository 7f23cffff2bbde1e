"""The journal of scores: the answers of scoring servers, durable before they are used.

A training that was killed scores nothing twice and continues with the same scores to the bit. Scores whose bytes have
changed on the disk do not match their digest and are requested again.
"""

import hashlib
import logging
import sqlite3
import threading
from array import array
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from xxhash import xxh3_64_digest

from stillhouse.errors import StoreError
from stillhouse.inference.scoring.apis import TokenSequence
from stillhouse.store.private import private_file
from stillhouse.store.sqlite import SQLITE_ERRORS, is_damage, salvage_remedy

SCORES_FILE: Final = "teacher_scores.sqlite"
"""In the folder of the training; one file for all its teachers."""
KEY_BYTES: Final = 32
_VERSION: Final = 1
_TABLE: Final = "CREATE TABLE IF NOT EXISTS score (key BLOB PRIMARY KEY, logprobs BLOB NOT NULL) WITHOUT ROWID"
# Version 0 had no digests: its rows are taken as they are.
_ADD_DIGESTS: Final = ("ALTER TABLE score ADD COLUMN digest BLOB", "UPDATE score SET digest = digest_of(key, logprobs)")
_SELECT: Final = "SELECT CAST(logprobs AS BLOB), CAST(digest AS BLOB) FROM score WHERE key = ?"
_INSERT: Final = """
INSERT INTO score (key, logprobs, digest) VALUES (?1, ?2, digest_of(?1, ?2))
ON CONFLICT (key) DO UPDATE SET logprobs = excluded.logprobs, digest = excluded.digest
WHERE digest_of(excluded.key, CAST(score.logprobs AS BLOB)) IS NOT CAST(score.digest AS BLOB)
"""
"""The first answer stays, unless it is damaged."""
_LOCK_TIMEOUT_S: Final = 60.0

logger = logging.getLogger(__name__)


class ScoreJournal:
    """Log-probabilities by scorer and token sequence.

    Args:
        identity: of the scorer and everything its answers depend on, such as the temperature.

    Raises:
        StoreError: it cannot be opened.
    """

    def __init__(self, path: Path, identity: str) -> None:
        self._path = path
        self._identity = identity.encode()
        self._lock = threading.Lock()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            private_file(path)
            self._file = sqlite3.connect(path, timeout=_LOCK_TIMEOUT_S, check_same_thread=False)
            self._file.execute("PRAGMA journal_mode = WAL")
            # A commit outlives the process; to outlive a loss of power would cost an fsync for each answer.
            self._file.execute("PRAGMA synchronous = NORMAL")
            self._file.create_function("digest_of", 2, digest_of_scores, deterministic=True)
            self._prepare()
        except (OSError, *SQLITE_ERRORS) as error:
            raise self._error("opened", error) from error

    def key(self, sequence: TokenSequence) -> bytes:
        """The key of a sequence and which of its tokens are scored."""
        hasher = hashlib.sha256(len(self._identity).to_bytes(8, "little") + self._identity)
        hasher.update(array("q", sequence.token_ids).tobytes())
        hasher.update(bytes(sequence.loss_mask))
        return hasher.digest()

    def find(self, keys: Sequence[bytes]) -> dict[bytes, list[float]]:
        """The stored log-probabilities of `keys`, damaged ones left out.

        Raises:
            StoreError: the file cannot be read.
        """
        try:
            with self._lock:
                rows = {key: self._file.execute(_SELECT, (key,)).fetchone() for key in keys}
        except SQLITE_ERRORS as error:
            raise self._error("read", error) from error
        stored = {key: row for key, row in rows.items() if row is not None}
        intact = {
            key: logprobs for key, (logprobs, digest) in stored.items() if digest == digest_of_scores(key, logprobs)
        }
        if len(intact) < len(stored):
            logger.warning(
                "journal of scores %s: %d of %d answers are damaged: their bytes do not match their digests. They are "
                "asked for again",
                self._path,
                len(stored) - len(intact),
                len(stored),
            )
        return {key: array("d", logprobs).tolist() for key, logprobs in intact.items()}

    def put(self, answers: Mapping[bytes, Sequence[float]]) -> None:
        """Makes answers durable.

        Raises:
            StoreError: they cannot be written.
        """
        rows = [(key, array("d", logprobs).tobytes()) for key, logprobs in answers.items()]
        try:
            with self._lock, self._file:
                self._file.executemany(_INSERT, rows)
        except SQLITE_ERRORS as error:
            raise self._error("written", error) from error

    def close(self) -> None:
        with self._lock:
            self._file.close()

    def _prepare(self) -> None:
        """Creates or migrates the table, once, also when two processes start at the same moment."""
        with self._file:
            self._file.execute("BEGIN IMMEDIATE")
            self._file.execute(_TABLE)
            if self._file.execute("PRAGMA user_version").fetchone()[0] < _VERSION:
                for statement in _ADD_DIGESTS:
                    self._file.execute(statement)
                self._file.execute(f"PRAGMA user_version = {_VERSION}")

    def _error(self, verb: str, error: Exception) -> StoreError:
        # The folder of a training is `<root>/training/<name>/`.
        remedy = (
            salvage_remedy(self._path.absolute().parents[2])
            if is_damage(error)
            else "Free some space or mend the permissions there"
        )
        return StoreError(
            f"journal of scores {self._path}: cannot be {verb}: {error}. {remedy}. Then run the same command again"
        )


def digest_of_scores(key: bytes, logprobs: bytes | None) -> bytes:
    """XXH3 of a key and the log-probabilities stored under it, 8 bytes."""
    return xxh3_64_digest(key + (logprobs or b""))
