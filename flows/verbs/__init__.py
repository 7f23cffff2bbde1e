"""Verbs of the shell that start no flow; `flows.cli` puts them beside those that do."""

from typing import Annotated

import typer

Entries = Annotated[str | None, typer.Option("-e", "--entries", help="Rows to use, such as 0,2,5; else all.")]
Teacher = Annotated[str | None, typer.Option("-m", "--model", help="Teacher: a model, or its name at --base-url.")]
BaseUrl = Annotated[str | None, typer.Option(help="OpenAI-compatible endpoint, up to and with /v1.")]
ApiKeyEnv = Annotated[str | None, typer.Option(help="Variable that holds the key. [OPENAI_API_KEY]")]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Override one value of the config; may be repeated."),
]
