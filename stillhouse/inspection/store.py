"""What in a store is damaged, and what to do about it."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from stillhouse.inference.journal.journal import JOURNAL_FILE
from stillhouse.inference.scoring.ledger import LEDGER
from stillhouse.inference.scoring.segments import SEGMENT, find_keys, read_scores
from stillhouse.inspection.databases import inspect_database
from stillhouse.store.manifest import damage
from stillhouse.store.private import is_open_to_others
from stillhouse.store.sqlite import recover_remedy

_MADE_AGAIN: Final = "run the command that made it again: the stage is run anew, with every answer from the journal"


class Finding(NamedTuple):
    """One thing inspected. `ok` is None for what is not there."""

    name: str
    ok: bool | None
    detail: str


def inspect_store(root: Path) -> Iterator[Finding]:
    """Looks at everything in a store, a folder of this machine, and changes nothing."""
    if not root.is_dir():
        yield Finding("store", None, f"{root} is not there yet; the first run makes it")
        return
    yield Finding("store", True, str(root))
    yield from _permissions(root)
    yield from _artifacts(root)
    yield from _results(root)
    yield from _checkpoints(root)
    for path in _journals(root):
        yield _database("journal", path, recover_remedy(path))
    yield from _ledgers(root)
    tracking = root / "mlflow.db"
    if tracking.exists():
        remedy = (
            f"{recover_remedy(tracking)}. Without either, move the file away: reports and artifacts of earlier runs "
            "are in the store all the same"
        )
        yield _database("MLflow", tracking, remedy, is_journal=False)


def _permissions(root: Path) -> Iterator[Finding]:
    open_paths = [path for path in (root, *root.rglob("*")) if is_open_to_others(path)]
    # Nobody gets past a folder that is closed.
    if is_open_to_others(root):
        detail = f"others may use {root} and {len(open_paths) - 1} files and folders in it"
        yield Finding("permissions", False, f"{detail}; `chmod -R go-rwx {root}`, or start a run, which does that too")
    else:
        yield Finding("permissions", True, "nobody but the store's owner can enter it")


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


def _results(root: Path) -> Iterator[Finding]:
    records = [path for path in sorted((root / "results").rglob("*")) if path.is_file()]
    problems = [None if _is_json(path) else f"{path} is not JSON; {_MADE_AGAIN}" for path in records]
    yield from _of_all("result", problems, "can be read")


def _is_json(path: Path) -> bool:
    try:
        return isinstance(json.loads(path.read_bytes()), dict)
    except (OSError, ValueError):
        return False


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
    """A finding for each problem, and one that counts the items without."""
    damaged = [problem for problem in problems if problem is not None]
    yield from (Finding(kind, False, problem) for problem in damaged)
    yield Finding(f"{kind}s", not damaged, f"{len(problems) - len(damaged)} of {len(problems)} {sound}")


def _journals(root: Path) -> Iterator[Path]:
    for path in (root / JOURNAL_FILE, *sorted(root.glob(f"journals/*/{JOURNAL_FILE}"))):
        if path.exists():
            yield path


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


def _database(name: str, path: Path, remedy: str, *, is_journal: bool = True) -> Finding:
    """The state of a SQLite file; `remedy` is for one that SQLite cannot use."""
    try:
        state = inspect_database(path, is_journal=is_journal)
    except OSError as error:
        return Finding(name, False, f"{path} cannot be read: {error}")
    if state.malformed is not None:
        return Finding(name, False, f"{path} is malformed: {state.malformed}; {remedy}")
    if not is_journal:
        return Finding(name, True, f"{path} is whole")
    if not state.has_digests:
        return Finding(name, True, f"{path}: of an earlier version; its records get digests when a run opens it")
    if state.num_altered:
        altered = f"{path}: {state.num_altered} of {state.num_records} records were altered"
        return Finding(name, False, f"{altered}; the next run that needs them asks again and replaces them")
    return Finding(name, True, f"{path}: {state.num_records} records, all as they were written")
