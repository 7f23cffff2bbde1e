"""Damage in a store, found by digests, and the remedy for each."""

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import quote

from stillhouse.errors import StoreError
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
    folders = [
        path
        for pattern in ("artifacts/*/*", "registered/*/*")
        for path in sorted(root.glob(pattern))
        # What is being written, or was when its writer was killed, is no artifact yet.
        if path.is_dir() and not path.name.startswith(".")
    ]
    checkpoints = sorted(root.glob("training/*/checkpoints/step-*"))
    score_files = sorted(root.glob(f"{LEDGER}/*/*.{SEGMENT}"))
    yield from _of_all("artifact", folders, _artifact_problem, "are as they were written")
    yield from _of_all("checkpoint", checkpoints, _checkpoint_problem, "are whole")
    for path in (root / JOURNAL_FILE, *sorted(root.glob(f"journals/*/{JOURNAL_FILE}"))):
        if path.exists():
            yield _journal(path)
    yield from _of_all("score file", score_files, _score_file_problem, "are as they were written")


def _of_all(
    kind: str, paths: Sequence[Path], problem_of: Callable[[Path], str | None], sound: str
) -> Iterator[Finding]:
    """Yield a finding for each problem, and one that counts the items without; nothing where there are no items."""
    problems = [problem for problem in map(problem_of, paths) if problem is not None]
    yield from (Finding(kind, False, problem) for problem in problems)
    if paths:
        yield Finding(f"{kind}s", not problems, f"{len(paths) - len(problems)} of {len(paths)} {sound}")


def _artifact_problem(folder: Path) -> str | None:
    try:
        problem = damage(folder)
    except StoreError as error:
        return str(error)
    return problem and f"{problem}; {_MADE_AGAIN}"


def _checkpoint_problem(folder: Path) -> str | None:
    # Takes torch with it.
    from stillhouse.training.loop.checkpoint import verify_checkpoint

    try:
        verify_checkpoint(folder)
    except (OSError, ValueError) as error:
        remedy = "the training goes on from the checkpoint before it; nothing is to be done, or delete the folder"
        return f"{folder}: {error}; {remedy}"
    return None


def _score_file_problem(path: Path) -> str | None:
    try:
        places = [place for _, place in find_keys(path)]
        found = [read_scores(path, offset, [row])[0] for _, offset, row, _ in places]
    except OSError as error:
        return f"{path} cannot be read: {error}"
    altered = found.count(None)
    text = f"{path}: {altered} of {len(found)} answers were altered; the next run that needs them asks again"
    return text if altered else None


def _journal(path: Path) -> Finding:
    try:
        uri = f"file:{quote(str(path))}?mode=ro"
        with closing(sqlite3.connect(uri, uri=True, timeout=_LOCK_TIMEOUT_S)) as connection:
            return _records(connection, path)
    except SQLITE_ERRORS as error:
        unreadable = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_CANTOPEN}
        if isinstance(error, sqlite3.OperationalError) and error.sqlite_errorcode in unreadable:
            return Finding("journal", False, f"{path} cannot be read: {error}")
        return _malformed(path, str(error))


def _records(connection: sqlite3.Connection, path: Path) -> Finding:
    problems = [row[0] for row in islice(connection.execute("PRAGMA integrity_check"), _MAX_NAMED)]
    if problems != ["ok"]:
        return _malformed(path, "; ".join(problems))
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    columns = {row[1] for row in connection.execute("PRAGMA table_info(entry)")}
    if version < _FIRST_WITH_DIGESTS:
        if "digest" in columns:
            return _malformed(
                path, f"its header says version {version}, which has no digests, and its records have some"
            )
        return Finding("journal", True, f"{path}: of an earlier version; a run that opens it gives its records digests")
    connection.create_function("digest_of", 2, digest_of, deterministic=True)
    count, num_unaltered = connection.execute(
        "SELECT count(*), total(digest_of(CAST(place AS BLOB), CAST(body AS BLOB)) IS CAST(digest AS BLOB)) FROM entry"
    ).fetchone()
    if num_altered := count - int(num_unaltered):
        altered = f"{path}: {num_altered} of {count} records were altered"
        return Finding("journal", False, f"{altered}; the next run that needs them asks again and replaces them")
    return Finding("journal", True, f"{path}: {count} records, all as they were written")


def _malformed(path: Path, problem: str) -> Finding:
    return Finding("journal", False, f"{path} is malformed: {problem}; {recover_remedy(path)}")
