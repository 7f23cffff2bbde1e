"""Damage in a store, found by digests, and the remedy for each."""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import quote

from stillhouse.inference.journal.journal import JOURNAL_FILE
from stillhouse.inference.journal.schema import digest_of
from stillhouse.inference.scoring.ledger import LEDGER
from stillhouse.inference.scoring.segments import SEGMENT, find_keys, read_scores
from stillhouse.store.manifest import damage
from stillhouse.store.sqlite import SQLITE_ERRORS, recover_remedy

_LOCK_TIMEOUT_S: Final = 60.0
_MAX_NAMED: Final = 3
_FIRST_WITH_DIGESTS: Final = 3
"""Version of a journal's form: the first whose records have digests."""
_MADE_AGAIN: Final = "run the command that made it again: the stage is run anew, with every answer from the journal"


class Finding(NamedTuple):
    """One thing inspected. `ok` is None for what is not there."""

    name: str
    ok: bool | None
    detail: str


def inspect_store(root: Path) -> Iterator[Finding]:
    """Compare all that has a digest in a store, a folder of this machine, with it; change nothing."""
    if not root.is_dir():
        yield Finding("store", None, f"{root} is not there yet; the first run makes it")
        return
    yield Finding("store", True, str(root))
    yield from _artifacts(root)
    yield from _checkpoints(root)
    for path in (root / JOURNAL_FILE, *sorted(root.glob(f"journals/*/{JOURNAL_FILE}"))):
        if path.exists():
            yield _journal(path)
    yield from _ledgers(root)


def _artifacts(root: Path) -> Iterator[Finding]:
    folders = [
        path
        for pattern in ("artifacts/*/*", "registered/*/*")
        for path in sorted(root.glob(pattern))
        # What is being written, or was when its writer was killed, is no artifact yet.
        if path.is_dir() and not path.name.startswith(".")
    ]
    problems = [problem and f"{problem}; {_MADE_AGAIN}" for problem in map(damage, folders)]
    yield from _of_all("artifact", problems, "are as they were written")


def _checkpoints(root: Path) -> Iterator[Finding]:
    folders = sorted(root.glob("training/*/checkpoints/step-*"))
    if not folders:
        return
    # Takes torch with it.
    from stillhouse.training.loop.checkpoint import verify_checkpoint

    problems: list[str | None] = []
    for folder in folders:
        try:
            verify_checkpoint(folder)
            problems.append(None)
        except (OSError, ValueError) as error:
            remedy = "the training goes on from the checkpoint before it; nothing is to be done"
            problems.append(f"{folder}: {error}; {remedy}, or delete the folder")
    yield from _of_all("checkpoint", problems, "are whole")


def _of_all(kind: str, problems: Sequence[str | None], sound: str) -> Iterator[Finding]:
    """Yield a finding for each problem, and one that counts the items without."""
    damaged = [problem for problem in problems if problem is not None]
    yield from (Finding(kind, False, problem) for problem in damaged)
    yield Finding(f"{kind}s", not damaged, f"{len(problems) - len(damaged)} of {len(problems)} {sound}")


def _ledgers(root: Path) -> Iterator[Finding]:
    paths = sorted(root.glob(f"{LEDGER}/*/*.{SEGMENT}"))
    problems: list[str | None] = []
    for path in paths:
        try:
            places = [place for _, place in find_keys(path)]
            found = [read_scores(path, offset, [row])[0] for _, offset, row, _ in places]
        except OSError as error:
            problems.append(f"{path} cannot be read: {error}")
            continue
        altered = found.count(None)
        text = f"{path}: {altered} of {len(found)} answers were altered; the next run that needs them asks again"
        problems.append(text if altered else None)
    if paths:
        yield from _of_all("score file", problems, "are as they were written")


def _journal(path: Path) -> Finding:
    try:
        state = _inspect_journal(path)
    except OSError as error:
        return Finding("journal", False, f"{path} cannot be read: {error}")
    if state.malformed is not None:
        return Finding("journal", False, f"{path} is malformed: {state.malformed}; {recover_remedy(path)}")
    if state.num_records is None:
        return Finding("journal", True, f"{path}: of an earlier version; a run that opens it gives its records digests")
    if state.num_altered:
        altered = f"{path}: {state.num_altered} of {state.num_records} records were altered"
        return Finding("journal", False, f"{altered}; the next run that needs them asks again and replaces them")
    return Finding("journal", True, f"{path}: {state.num_records} records, all as they were written")


@dataclass(frozen=True, slots=True)
class _JournalState:
    """The findings in a journal."""

    malformed: str | None = None
    """SQLite's message for a file it cannot use; None for one that it can."""
    num_records: int | None = None
    """None where they have no digests."""
    num_altered: int = 0
    """Records that do not match their digest."""


def _inspect_journal(path: Path) -> _JournalState:
    """Read all of a journal, and change nothing.

    Raises:
        OSError: it cannot be read, or a process kept it locked.
    """
    try:
        uri = f"file:{quote(str(path))}?mode=ro"
        with closing(sqlite3.connect(uri, uri=True, timeout=_LOCK_TIMEOUT_S)) as connection:
            problems = [row[0] for row in islice(connection.execute("PRAGMA integrity_check"), _MAX_NAMED)]
            if problems != ["ok"]:
                return _JournalState("; ".join(problems))
            version: int = connection.execute("PRAGMA user_version").fetchone()[0]
            columns = {row[1] for row in connection.execute("PRAGMA table_info(entry)")}
            if version < _FIRST_WITH_DIGESTS:
                problem = f"its header says version {version}, which has no digests, and its records have some"
                return _JournalState(problem if "digest" in columns else None)
            connection.create_function("digest_of", 2, digest_of, deterministic=True)
            count, num_unaltered = connection.execute(
                "SELECT count(*), total(digest_of(CAST(place AS BLOB), CAST(body AS BLOB)) IS CAST(digest AS BLOB)) "
                "FROM entry"
            ).fetchone()
            return _JournalState(None, count, count - int(num_unaltered))
    except SQLITE_ERRORS as error:
        unreadable = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_CANTOPEN}
        if isinstance(error, sqlite3.OperationalError) and error.sqlite_errorcode in unreadable:
            raise OSError(str(error)) from error
        return _JournalState(str(error))
