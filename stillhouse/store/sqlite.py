"""Damaged SQLite files of a store: how to recognise them, and the remedy."""

import shlex
import sqlite3
from pathlib import Path
from typing import Final

# SQLite's messages repeat damaged bytes, which need not be UTF-8.
SQLITE_ERRORS: Final = (sqlite3.Error, UnicodeDecodeError)
"""Exceptions of `sqlite3` for an unusable file."""
_DAMAGE_CODES: Final = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})


def is_damage(error: BaseException) -> bool:
    """Return whether the file is damaged, rather than out of space, permissions or locked."""
    if isinstance(error, UnicodeDecodeError):
        return True
    # The primary code is the low byte: https://www.sqlite.org/rescode.html
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    # A damaged schema makes tables and columns go missing (SQLITE_ERROR).
    return code in _DAMAGE_CODES or code == sqlite3.SQLITE_ERROR


def recover_remedy(path: Path) -> str:
    """Return the remedy for a damaged database, as a clause."""
    old, new = shlex.quote(str(path)), shlex.quote(f"{path}.new")
    return (
        f"`sqlite3 {old} .recover | sqlite3 {new}` copies what can be read into a new file, to be put in the place of "
        "the damaged one (docs/operations/backup.md says how), or put a copy from a backup there"
    )
