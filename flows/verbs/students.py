"""The verb for trained students: hand them on."""

import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer

from flows.verbs.data import Private, Push, Store, require_place

if TYPE_CHECKING:
    from stillhouse.types import JsonObject


def publish(
    student: Annotated[
        str, typer.Argument(metavar="STUDENT", help="A student's folder, or a run, as view takes it, for its last one.")
    ] = "latest",
    output: Annotated[Path | None, typer.Option("-o", "--output", help="New folder to write it to.")] = None,
    merge: Annotated[
        bool, typer.Option("--merge", help="Write weights with the adapter merged in, checked against the adapter.")
    ] = False,
    push: Push = None,
    private: Private = False,
    license_id: Annotated[
        str | None, typer.Option("--license", help="License for the card, such as apache-2.0. [none stated]")
    ] = None,
    store: Store = "runs",
) -> None:
    """Write a student, its adapter or merged weights, to a folder with a model card, or push it to the hub."""
    require_place("name where the student goes: a folder by", output, push, private)
    from stillhouse.progress.terminal import error_console
    from stillhouse.store.hub import hub_client
    from stillhouse.training.results.export import export_student, push_student

    folder, evaluations = _find_student(student, store)
    # Asked first: a token that is missing is not to be told after minutes of merging.
    hub = None if push is None else hub_client()
    console = error_console()
    with TemporaryDirectory() as scratch:
        written = output or Path(scratch) / "student"
        copy = {} if output is not None else {"copy": os.symlink}
        with console.status("merging the adapter into its base" if merge else "writing the student"):
            export_student(folder, written, merge=merge, evaluations=evaluations, license_id=license_id, **copy)
        if output is not None:
            typer.echo(output)
        if push is not None and hub is not None:
            with console.status(f"uploading to {push}"):
                address = push_student(written, push, private=private, api=hub)
            typer.echo(address)


def _find_student(name: str, store: str) -> tuple[Path, dict[str, "JsonObject"]]:
    """Return a student's folder, and by model what its run measured, where it is named by a run that did."""
    from flows.verbs.runs import find_folder
    from stillhouse.store.artifacts import artifact_in
    from stillhouse.store.runs import TRAINED, fetch_run
    from tasks.run.stage import EVALUATION_OF

    root = fetch_run(store, name, lambda stage: stage in TRAINED or stage.startswith(EVALUATION_OF))
    folder, run = find_folder(name, root, "student", TRAINED[::-1])
    stages = {} if run is None else run.artifacts
    measured = {
        stage.removeprefix(EVALUATION_OF): artifact_in(Path(uri))
        for stage, uris in stages.items()
        for uri in uris
        if stage.startswith(EVALUATION_OF)
    }
    return folder, {model: artifact.facts for model, artifact in measured.items() if artifact is not None}
