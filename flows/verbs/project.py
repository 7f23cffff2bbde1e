"""The verb that starts a project of the user's own."""

from pathlib import Path
from typing import Annotated, get_args

import typer

from stillhouse.project import Template, create_project


def init(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Where it goes, such as a new folder.")],
    template: Annotated[
        Template,
        typer.Option(help=f"What its config does: {', '.join(get_args(Template))} (SFT, then on-policy with rewards)."),
    ] = "sft",
) -> None:
    """Write a project to start from: config, prompts, tools.py, rewards.py. It runs as it is."""
    for path in create_project(folder, template):
        typer.echo(path)
    typer.echo(f"\nnext: cd {folder} && stillhouse distill config.yaml")
