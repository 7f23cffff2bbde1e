"""Verbs of the shell that start no flow; `flows.cli` puts them beside those that do."""

from typing import Annotated

import typer

Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Override one value of the config; may be repeated."),
]
