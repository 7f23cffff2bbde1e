"""The verb that shows a run's progress in another terminal, or on another machine."""

import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from flows.verbs.data import Store
from stillhouse.errors import InputError, StillhouseError

if TYPE_CHECKING:
    from stillhouse.progress.snapshot import Snapshot
    from stillhouse.progress.terminal import TerminalProgress
    from stillhouse.store import ArtifactStore

_EVERY_S: Final = 1.0
_EVERY_REMOTE_S: Final = 10.0
_SILENT_S: Final = 60.0
"""A run writes every two seconds, and shares what it wrote every twenty."""


def watch(
    run: Annotated[
        str, typer.Argument(metavar="RUN", help="A run: its MLflow id, its Prefect id or name, or latest.")
    ] = "latest",
    store: Store = "runs",
) -> None:
    """Watch a run from another terminal or machine, until it ends."""
    from stillhouse.progress.terminal import TerminalProgress, error_console
    from stillhouse.store import ArtifactStore
    from stillhouse.store.runs import fetch_records, find_run_folder

    place = ArtifactStore(store)
    fetch_records(place)
    folder = find_run_folder(place.root, run)
    console = error_console()
    with suppress(KeyboardInterrupt), TerminalProgress(console) as progress:
        while (snapshot := _read(place, folder)).status == "running":
            _show(snapshot, progress)
            time.sleep(_EVERY_S if place.remote is None else _EVERY_REMOTE_S)
        _show(snapshot, progress)
    if snapshot.status == "failed":
        raise StillhouseError(f"the run has failed: {snapshot.failure}")
    typer.echo(f"{folder.name}: {snapshot.status}")


def _read(store: "ArtifactStore", folder: Path) -> "Snapshot":
    from stillhouse.progress.snapshot import PROGRESS_FILE, parse_snapshot

    try:
        if store.remote is None:
            return parse_snapshot((folder / PROGRESS_FILE).read_bytes())
        return parse_snapshot(store.remote.read(f"reports/{folder.name}/{PROGRESS_FILE}") or b"")
    except (OSError, ValueError) as error:
        raise InputError(f"{folder / PROGRESS_FILE}: no progress of a run can be read there: {error}") from error


def _show(snapshot: "Snapshot", progress: "TerminalProgress") -> None:
    for stage, bar in snapshot.bars.items():
        if bar.rollouts is not None:
            progress.update_rollouts(stage, bar.rollouts)
        else:
            progress.update(stage, bar.done, bar.total, **bar.facts)
        progress.set_seconds(stage, bar.seconds)
    silent_s = time.time() - snapshot.updated_at
    progress.update_run(snapshot.run)
    if snapshot.status == "running" and silent_s > _SILENT_S:
        progress.say(f"silent for {silent_s:.0f} s: it was killed, or its machine is away")
