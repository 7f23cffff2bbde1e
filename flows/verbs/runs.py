"""Folders that are named as such, or by the run that made them."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from stillhouse.errors import ConfigError, InputError, StillhouseError
from stillhouse.store.artifacts import ArtifactStore, require_whole
from stillhouse.store.runs import (
    RUN_FILE,
    RunRecord,
    fetch_records,
    find_run,
    find_run_folder,
    newest_run_folder,
    read_run_record,
    runs_below,
)

if TYPE_CHECKING:
    from stillhouse.progress.snapshot import Snapshot

SILENT_S: Final = 60.0
"""A run that has written no progress for so long was killed: it writes every two seconds, and shares them every 20."""


def find_folder(name: str, store: Path, what: str, stages: Sequence[str]) -> tuple[Path, RunRecord | None]:
    """The folder `name`, or that of the artifact which the run of that name made last, with the run's record.

    Args:
        name: a folder, that of a run's report, or a run as `find_run` takes it.
        store: holds what runs left behind.
        what: the artifact in a word, for messages.
        stages: of a run, whose artifacts are taken; the first that is there.

    Raises:
        ConfigError: there is no such run, or the folder holds runs.
        InputError: the run made nothing of the kind, or what it made is gone.
        StoreError: what it made is damaged.
    """
    path = Path(name)
    if path.is_dir() and not (path / RUN_FILE).is_file():
        if below := runs_below(path):
            raise ConfigError(f"{path}: expected the folder of a {what} or of a run's report{below}")
        require_whole(path)
        return path, None
    record = read_run_record(path / RUN_FILE) if path.is_dir() else find_run(store, name)
    run = f"run {record.flow} of {record.created_at}"
    folders = [Path(uri) for stage in stages for uri in record.artifacts.get(stage, ())[-1:]]
    if not folders:
        raise InputError(f"{run}: it made no {what}; its stages: {', '.join(record.artifacts) or 'none'}")
    if not folders[0].is_dir():
        raise InputError(f"{run}: its {what} {folders[0]} is gone; make it again")
    require_whole(folders[0])
    return folders[0], record


def read_progress(store: ArtifactStore, name: str) -> tuple[Path, "Snapshot"]:
    """The folder of the run of that name, of all runs the newest for `latest`, and its progress.

    Raises:
        ConfigError: there is no such run.
        InputError: it wrote no progress.
    """
    # pydantic takes a moment for the whole of it.
    from stillhouse.progress.snapshot import PROGRESS_FILE, parse_snapshot

    fetch_records(store)
    folder = newest_run_folder(store.root) if name == "latest" else find_run_folder(store.root, name)
    try:
        if store.remote is None:
            return folder, parse_snapshot((folder / PROGRESS_FILE).read_bytes())
        return folder, parse_snapshot(store.remote.read(f"reports/{folder.name}/{PROGRESS_FILE}") or b"")
    except (OSError, ValueError) as error:
        raise InputError(f"{folder / PROGRESS_FILE}: no progress of a run can be read there: {error}") from error


def is_running(store: str, name: str) -> bool:
    """Whether there is a run of that name, and it goes on."""
    try:
        _, snapshot = read_progress(ArtifactStore(store), name)
    except StillhouseError:
        return False
    return snapshot.status == "running" and time.time() - snapshot.updated_at < SILENT_S
