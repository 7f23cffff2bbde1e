"""A journal on object storage, so that another machine does not pay again for the answers of a lost one.

New records are uploaded as a file of a unique name at intervals and at the end; each machine takes over
the files it has not seen when it begins. A lost machine loses the answers of its last interval. Nothing on the storage
is ever replaced: journals only grow, and equal places hold equal answers.
"""

import fcntl
import json
import logging
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from stillhouse.errors import StoreError
from stillhouse.inference.journal.journal import JOURNAL_FILE
from stillhouse.inference.journal.parts import joined, take_over
from stillhouse.inference.journal.schema import IS_WHOLE
from stillhouse.store.atomic import write_atomic
from stillhouse.store.fingerprint import canonical_json
from stillhouse.store.remote import RemoteFolder

_FOLDER: Final = "journal"
_STATE_FILE: Final = "journal-copies.json"
# Records of other machines are not uploaded again. ?1 and ?2 bound the rows; `others` are spans of row numbers.
_NEW: Final = f"""
SELECT place, body, digest FROM other.entry source WHERE source.rowid > ?1 AND source.rowid <= ?2 AND {IS_WHOLE}
AND NOT EXISTS (
    SELECT 1 FROM json_each(?3)
    WHERE source.rowid BETWEEN json_extract(value, '$[0]') AND json_extract(value, '$[1]')
)
"""
_LAST: Final = "SELECT coalesce(max(rowid), 0) FROM {}.entry"

logger = logging.getLogger(__name__)


class JournalCopies:
    """The files that machines make of their journals, as one machine sees them."""

    def __init__(self, remote: RemoteFolder, folder: Path) -> None:
        self._remote, self._folder = remote, folder

    def take_over(self) -> int:
        """Copy other machines' records into the journal; return how many are new. Raise StoreError on failure."""
        with self._state() as state:
            unseen = sorted(self._remote.sizes(_FOLDER).keys() - set(state["seen"]))
            num_new = 0
            for name in unseen:
                with self._temporary() as copy:
                    self._remote.download({f"{_FOLDER}/{name}": copy})
                    try:
                        first, last = self._add(copy)
                    except StoreError as error:
                        # Its answers are paid for again.
                        logger.warning("%s/%s/%s is left out: %s", self._remote.url, _FOLDER, name, error)
                        continue
                if last >= first:
                    state["others"].append([first, last])
                state["seen"].append(name)
                num_new += last - first + 1
            if unseen:
                logger.info("%s: %d answers from %d files of other machines", self._folder, num_new, len(unseen))
            return num_new

    def hand_on(self) -> int:
        """Upload new records of this machine's journal, and return their number; raise StoreError where that fails."""
        with self._state() as state, self._temporary() as copy:
            num_rows, last = self._extract(copy, state)
            if num_rows:
                name = f"{uuid.uuid4().hex}.sqlite3"
                self._remote.upload({f"{_FOLDER}/{name}": copy})
                state["seen"].append(name)
            state["handed_on"] = last
            return num_rows

    @contextmanager
    def _state(self) -> Iterator[dict[str, Any]]:
        """Return what was exchanged so far, locked against other processes; saved when the block ends well."""
        path = self._folder / _STATE_FILE
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with path.with_suffix(".lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            state = {"handed_on": 0, "others": [], "seen": []}
            if path.exists():
                state = json.loads(path.read_bytes())
            yield state
            write_atomic(path, canonical_json(state))

    @contextmanager
    def _temporary(self) -> Iterator[Path]:
        with tempfile.TemporaryDirectory(dir=self._folder) as folder:
            yield Path(folder) / JOURNAL_FILE

    def _add(self, copy: Path) -> tuple[int, int]:
        """Return the numbers of the first and the last row that the copy added to the journal."""
        with joined(self._folder / JOURNAL_FILE, copy) as connection:
            before = connection.execute(_LAST.format("main")).fetchone()[0]
            take_over(connection, copy)
            return before + 1, connection.execute(_LAST.format("main")).fetchone()[0]

    def _extract(self, copy: Path, state: dict[str, Any]) -> tuple[int, int]:
        """Return the number of rows that the copy got, and the number of the journal's last row."""
        if not (self._folder / JOURNAL_FILE).exists():
            return 0, 0
        with joined(copy, self._folder / JOURNAL_FILE) as connection:
            last = connection.execute(_LAST.format("other")).fetchone()[0]
            span = (state["handed_on"], last, json.dumps(state["others"]))
            return connection.execute(f"INSERT INTO entry (place, body, digest) {_NEW}", span).rowcount, last
