"""Verbs for this machine: serve a model on it, and see what works."""

from contextlib import suppress
from pathlib import Path
from typing import Annotated, Literal

import typer

from flows.verbs import Overrides
from stillhouse.config import load_config, parse_config

Device = Literal["auto", "cpu", "cuda"]
Dtype = Literal["auto", "float32", "bfloat16", "float16"]


def serve(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A folder, a Hugging Face id, or embedded:NAME.")],
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port; 0 takes a free one.")] = 8000,
    name: Annotated[str | None, typer.Option(help="What clients call the model. [MODEL]")] = None,
    device: Annotated[Device, typer.Option(help="Where the model runs.")] = "auto",
    dtype: Annotated[Dtype, typer.Option(help="Type of the weights; auto keeps the model's own.")] = "auto",
    num_threads: Annotated[int | None, typer.Option(help="CPU threads. [as torch decides]")] = None,
    max_batch: Annotated[int, typer.Option(help="Sequences decoded at once.")] = 64,
    max_pending: Annotated[int, typer.Option(help="Sequences that may wait; requests beyond are answered 429.")] = 256,
    api_key_env: Annotated[str | None, typer.Option(help="Ask for the key in this variable. [no key]")] = None,
) -> None:
    """Serve a model through an OpenAI-compatible API, until Ctrl-C or SIGTERM."""
    from stillhouse.serving.server import serve as serve_model

    with suppress(KeyboardInterrupt):
        serve_model(
            model,
            host=host,
            port=port,
            name=name,
            device=device,
            dtype=dtype,
            num_threads=num_threads,
            max_batch=max_batch,
            max_pending=max_pending,
            api_key_env=api_key_env,
        )


def doctor(
    config: Annotated[Path | None, typer.Argument(metavar="[CONFIG.yaml]", help="Check for this config.")] = None,
    overrides: Overrides = None,
) -> None:
    """Show what is installed, which device and keys are there, and whether store and endpoints answer."""
    from stillhouse.doctor import examine

    given = overrides or ()
    chosen = load_config(config, given) if config else parse_config({}, origin="--set", overrides=given)
    marks = {True: typer.style("ok     ", fg="green"), False: typer.style("FAILED ", fg="red"), None: "absent "}
    failed = False
    for check in examine(chosen):
        typer.echo(f"{marks[check.ok]} {check.name:<18} {check.detail}")
        failed = failed or check.ok is False
    raise typer.Exit(1 if failed else 0)
