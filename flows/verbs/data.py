"""Verbs for data: view trajectories, convert files of other programs, export datasets."""

import shutil
import time
import webbrowser
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, get_args

import typer

from flows.verbs.runs import is_running
from stillhouse.config import SamePrompt
from stillhouse.errors import ConfigError

if TYPE_CHECKING:
    from stillhouse.report.view.page import WrittenPage

_FOLLOW_S = 5

Store = Annotated[str, typer.Option(help="Folder that holds what runs left behind, or a URL of object storage.")]
Push = Annotated[
    str | None, typer.Option(metavar="OWNER/NAME", help="Push to this repository of the Hugging Face hub.")
]
Private = Annotated[bool, typer.Option("--private", help="Make the repository private.")]
ForeignForm = Literal[
    "rnow-rollouts", "rnow-jsonl", "rnow-config", "roll-jsonl", "roll-config", "openai", "sharegpt",
    "alpaca", "completion", "inspect", "verifiers", "claude-code", "codex", "otel", "langfuse", "mlflow-traces",
    "openai-log", "auto",
]  # fmt: skip
_PRIVATE_KINDS = ("secret", "email", "phone", "card", "iban", "ip", "id")
ExportForm = Literal["jsonl", "openai", "rnow", "sharegpt", "parquet", "hf"]
EXPORT_FORMS = ", ".join(get_args(ExportForm))
_DATASET_FILE = "train.parquet"


def _foreign_form(name: str) -> str:
    if name not in get_args(ForeignForm):
        raise typer.BadParameter(f"expected one of {', '.join(get_args(ForeignForm))}; saw {name!r}")
    return name


def view(
    run: Annotated[
        str,
        typer.Argument(
            metavar="RUN",
            help="A run (its MLflow id, its Prefect id or name, or latest), an artifact's folder, or a .jsonl or "
            ".parquet file of trajectories.",
        ),
    ] = "latest",
    store: Store = "runs",
    output: Annotated[Path | None, typer.Option("-o", "--output", help="The page; else a file in the store.")] = None,
    open_page: Annotated[bool, typer.Option("--open/--no-open", help="Open the page in a browser.")] = True,
    max_rows: Annotated[int, typer.Option(min=1, help="Most trajectories on the page.")] = 10_000,
    follow: Annotated[
        bool, typer.Option("--follow", help="Write the page anew while the run goes on; it reloads itself.")
    ] = False,
) -> None:
    """Read trajectories: a page to search and filter, in one file that needs nothing beside it."""
    from stillhouse.report.view.page import view_run
    from stillhouse.store.runs import TRAINED, fetch_run

    if follow and "://" in store:
        raise ConfigError(f"--follow is for a run of this machine; view what has been shared at {store} without it")

    def write(reload_s: int | None) -> "WrittenPage":
        root = fetch_run(store, run, lambda stage: stage not in TRAINED)
        return view_run(run, root, output, max_rows, reload_s=reload_s)

    follows = follow and is_running(Path(store), run)
    page = write(_FOLLOW_S if follows else None)
    more = "" if page.is_complete else "; there are more, which --max-rows lets in"
    typer.echo(f"{page.path}: {page.num_rows} trajectories{more}")
    if open_page and not webbrowser.open(page.path.absolute().as_uri()):
        typer.echo("no browser was found here: open the file in one", err=True)
    with suppress(KeyboardInterrupt):
        while follows:
            time.sleep(_FOLLOW_S)
            follows = is_running(Path(store), run)
            # The last page does not reload itself any more.
            write(_FOLLOW_S if follows else None)


def convert(
    source: Annotated[
        Path, typer.Argument(metavar="SOURCE", help="A file, or a folder of files, that another program wrote.")
    ],
    output: Annotated[
        Path, typer.Option("-o", "--output", help="Folder for prompts.jsonl, trajectories.jsonl, config.yaml.")
    ],
    form: Annotated[
        ForeignForm,
        typer.Option(
            "--from",
            metavar="FORMAT",
            parser=_foreign_form,
            help=f"What wrote it: {', '.join(get_args(ForeignForm))} (decides by its keys).",
        ),
    ] = "auto",
    include_failed: Annotated[
        bool, typer.Option("--include-failed", help="Take in rollouts that failed, as failed trajectories.")
    ] = False,
    tools: Annotated[
        Path | None, typer.Option("-t", "--tools", help="File of the @tool functions that were offered.")
    ] = None,
    teacher: Annotated[str | None, typer.Option(help="Model that answered, where the rows do not say.")] = None,
    same_prompt: Annotated[
        SamePrompt,
        typer.Option(
            metavar="first|merge|keep",
            help="Rows with one prompt and different metadata: take the first, merge them, or keep each.",
        ),
    ] = "first",
    drop_private: Annotated[
        str,
        typer.Option(
            metavar="KINDS", help=f"Leave out conversations with some of {', '.join(_PRIVATE_KINDS)}; or none."
        ),
    ] = "secret",
) -> None:
    """Convert files of other programs: rollouts, rows and configs of rnow and ROLL, rows, logs and traces of others.

    What has no equivalent here is listed, in short on the screen and in full in unmapped.jsonl.
    """
    from stillhouse.interop import ConvertOptions, convert, summary_lines

    kinds = () if drop_private == "none" else tuple(drop_private.split(","))
    if unknown := sorted({*kinds} - {*_PRIVATE_KINDS}):
        raise ConfigError(f"--drop-private: expected some of {', '.join(_PRIVATE_KINDS)}, or none; saw {unknown[0]!r}")
    account = convert(source, output, form, ConvertOptions(include_failed, tools, teacher, same_prompt, kinds))
    for line in summary_lines(account, output, shutil.get_terminal_size().columns):
        typer.echo(line)


def export(
    dataset: Annotated[
        str, typer.Argument(metavar="DATASET", help="A dataset's folder, or a run as view takes it.")
    ] = "latest",
    output: Annotated[Path | None, typer.Option("-o", "--output", help="File to write; for hf a new folder.")] = None,
    form: Annotated[
        ExportForm, typer.Option("--to", metavar="FORM", help=f"Form of the rows: {EXPORT_FORMS}.")
    ] = "openai",
    push: Push = None,
    private: Private = False,
    store: Store = "runs",
) -> None:
    """Write a dataset's kept rows in another form, or push them to the Hugging Face hub."""
    require_place("name where the rows go: a file or folder by", output, push, private)
    folder = _dataset_folder(dataset, store)
    if output is not None:
        from stillhouse.interop.export import export_dataset

        typer.echo(f"{output}: {export_dataset(folder, output, form)}")
    if push is not None:
        from stillhouse.interop.export import push_to_hub

        typer.echo(push_to_hub(folder, push, private=private))


def require_place(wanted: str, output: Path | None, push: str | None, private: bool) -> None:
    """Raise ConfigError, beginning with `wanted`, if there is neither a path nor a repository, or no private one."""
    if output is None and push is None:
        raise ConfigError(f"{wanted} --output, a repository by --push, or both")
    if private and push is None:
        raise ConfigError("--private is for a repository; name it by --push OWNER/NAME")


def _dataset_folder(name: str, store: str) -> Path:
    from flows.verbs.runs import find_folder
    from stillhouse.store.runs import fetch_run

    root = fetch_run(store, name, lambda stage: stage == "dataset")
    folder, _ = find_folder(name, root, "dataset", ["dataset"])
    if not (folder / _DATASET_FILE).is_file():
        raise ConfigError(f"{folder}: expected the folder of a dataset, with {_DATASET_FILE}, or of a run's report")
    return folder
