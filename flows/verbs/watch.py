"""The verb that shows a run's progress in another terminal, or on another machine."""

import time
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Final

import typer

from flows.verbs.data import Store
from flows.verbs.runs import SILENT_S, read_progress
from stillhouse.errors import StillhouseError

if TYPE_CHECKING:
    from stillhouse.progress.snapshot import Snapshot
    from stillhouse.progress.terminal import TerminalProgress

_EVERY_S: Final = 1.0
_EVERY_REMOTE_S: Final = 10.0


def watch(
    run: Annotated[
        str, typer.Argument(metavar="RUN", help="A run: its MLflow id, its Prefect id or name, or latest.")
    ] = "latest",
    store: Store = "runs",
) -> None:
    """Watch a run from another terminal or machine, until it ends."""
    from stillhouse.progress.terminal import TerminalProgress, error_console
    from stillhouse.store import ArtifactStore

    place = ArtifactStore(store)
    folder, snapshot = read_progress(place, run)
    with suppress(KeyboardInterrupt), TerminalProgress(error_console()) as progress:
        _show(snapshot, progress)
        while snapshot.status == "running":
            time.sleep(_EVERY_S if place.remote is None else _EVERY_REMOTE_S)
            _, snapshot = read_progress(place, folder.name)
            _show(snapshot, progress)
    if snapshot.status == "failed":
        raise StillhouseError(f"the run has failed: {snapshot.failure}")
    typer.echo(f"{folder.name}: {snapshot.status}")


def _show(snapshot: "Snapshot", progress: "TerminalProgress") -> None:
    for stage, bar in snapshot.bars.items():
        if bar.rollouts is not None:
            progress.update_rollouts(stage, bar.rollouts)
        else:
            progress.update(stage, bar.done, bar.total, **bar.facts)
        progress.set_seconds(stage, bar.seconds)
    silent_s = time.time() - snapshot.updated_at
    progress.update_run(snapshot.run)
    if snapshot.status == "running" and silent_s > SILENT_S:
        progress.say(f"silent for {silent_s:.0f} s: it was killed, or its machine is away")
