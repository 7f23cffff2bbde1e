"""Folders that are named as such, or by the run that made them."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from stillhouse.errors import ConfigError, InputError
from stillhouse.store.artifacts import require_whole
from stillhouse.store.runs import RECENT_FILE, RUN_FILE, RunRecord, find_run, read_run_record, runs_below

_SILENT_S: Final = 60.0
"""A run that has not touched its last trajectories for so long was killed: it does so every two seconds."""


def find_folder(name: str, store: Path, what: str, stages: Sequence[str]) -> tuple[Path, RunRecord | None]:
    """Return the folder `name`, or an artifact's of the run of that name, with the run's record.

    `name` is a folder, also of a run's report, or a run as `find_run` takes it; of `stages` the first that is there
    gives its artifact, called `what` in messages. Raises ConfigError if there is no such run, or the folder holds runs;
    InputError if the run made nothing of the kind, or what it made is gone; StoreError if what it made is damaged.
    """
    path = Path(name)
    if path.is_dir() and not (path / RUN_FILE).is_file():
        if below := runs_below(path):
            raise ConfigError(f"{path}: expected the folder of a {what} or of a run's report{below}")
        require_whole(path)
        return path, None
    record = read_run_record(path / RUN_FILE) if path.is_dir() else find_run(store, name)[1]
    run = f"run {record.flow} of {record.created_at}"
    folders = [Path(uri) for stage in stages for uri in record.artifacts.get(stage, ())[-1:]]
    if not folders:
        raise InputError(f"{run}: it made no {what}; its stages: {', '.join(record.artifacts) or 'none'}")
    if not folders[0].is_dir():
        raise InputError(f"{run}: its {what} {folders[0]} is gone; make it again")
    require_whole(folders[0])
    return folders[0], record


def is_running(store: Path, name: str) -> bool:
    """Return whether there is a run of that name on this machine that has trajectories and goes on."""
    try:
        touched = (find_run(store, name)[0] / RECENT_FILE).stat().st_mtime
    except (ConfigError, InputError, OSError):
        return False
    return time.time() - touched < _SILENT_S
