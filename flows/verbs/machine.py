"""Verbs for this machine: serve a model on it, and see what works."""

from contextlib import suppress
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Annotated, Literal

import typer
from pydantic import TypeAdapter, ValidationError

from flows.verbs import Overrides
from flows.verbs.data import Store
from flows.verbs.run_config import addressed, shown_progress
from stillhouse.config import DistillConfig, load_config, parse_config
from stillhouse.config.expected import expected
from stillhouse.config.section import ChatTemplateKwargs
from stillhouse.errors import ConfigError
from stillhouse.store import ArtifactStore

Device = Literal["auto", "cpu", "cuda"]
Dtype = Literal["auto", "float32", "bfloat16", "float16"]


def serve(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A folder, a Hugging Face id, or embedded:NAME.")],
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port; 0 takes a free one.")] = 8000,
    name: Annotated[str | None, typer.Option(help="What clients call the model. [MODEL]")] = None,
    chat_template_kwargs: Annotated[
        str, typer.Option(help="Defaults of the chat template's variables as JSON: '{\"enable_thinking\": false}'.")
    ] = "{}",
    device: Annotated[Device, typer.Option(help="Where the model runs.")] = "auto",
    dtype: Annotated[Dtype, typer.Option(help="Type of the weights; auto keeps the model's own.")] = "auto",
    num_threads: Annotated[int | None, typer.Option(help="CPU threads; else as torch decides.")] = None,
    max_batch: Annotated[int, typer.Option(help="Sequences decoded at once.")] = 64,
    max_pending: Annotated[int, typer.Option(help="Sequences that may wait; requests beyond are answered 429.")] = 256,
    api_key_env: Annotated[str | None, typer.Option(help="Ask for the key in this variable; else for none.")] = None,
    allowed_hosts: Annotated[
        str | None, typer.Option(help="Names it is called by, besides localhost and addresses: a,b.")
    ] = None,
) -> None:
    """Serve a model through an OpenAI-compatible API, until Ctrl-C or SIGTERM."""
    from stillhouse.serving.server import serve as serve_model

    with suppress(KeyboardInterrupt):
        serve_model(
            model,
            host=host,
            port=port,
            name=name,
            chat_template_kwargs=_template_kwargs(chat_template_kwargs),
            device=device,
            dtype=dtype,
            num_threads=num_threads,
            max_batch=max_batch,
            max_pending=max_pending,
            api_key_env=api_key_env,
            allowed_hosts=allowed_hosts.split(",") if allowed_hosts else (),
        )


def _template_kwargs(text: str) -> ChatTemplateKwargs:
    try:
        return TypeAdapter(ChatTemplateKwargs).validate_json(text)
    except ValidationError as error:
        raise ConfigError(f"--chat-template-kwargs {text!r}: {expected(dict(error.errors()[0]))}") from None


def doctor(
    config: Annotated[Path | None, typer.Argument(metavar="[CONFIG.yaml]", help="Check for this config.")] = None,
    overrides: Overrides = None,
    store: Annotated[
        bool,
        typer.Option("--store", help="Check the store instead: all that has a digest."),
    ] = False,
    pair: Annotated[
        bool, typer.Option("--pair", help="Measure instead whether student and teacher fit together.")
    ] = False,
    prompts: Annotated[int, typer.Option(min=2, help="With --pair: held-out prompts to measure on.")] = 32,
) -> None:
    """Show what is installed, which device and keys are there, and whether store and endpoints answer."""
    from stillhouse.doctor import examine
    from tasks.first_question import examine_models
    from tasks.run.keys import find_keys, variables_of

    changes = overrides or ()
    checked = addressed(partial(load_config, config) if config else partial(parse_config, {}, "--set"), changes)
    if pair and store:
        raise ConfigError("--pair and --store are two examinations; give one of them")
    if pair:
        raise typer.Exit(_show_pair(checked, prompts))
    if store:
        from stillhouse.inspection import inspect_store

        checks = inspect_store(ArtifactStore(checked.runtime.store, checked.runtime.scratch).root)
    else:
        find_keys(variables_of(checked))
        checks = chain(examine(checked), examine_models(checked))
    marks = {True: typer.style("ok     ", fg="green"), False: typer.style("FAILED ", fg="red"), None: "absent "}
    failed = False
    for check in checks:
        typer.echo(f"{marks[check.ok]} {check.name:<18} {check.detail}")
        failed = failed or check.ok is False
    raise typer.Exit(1 if failed else 0)


def _show_pair(config: DistillConfig, num_prompts: int) -> int:
    """Print what is found about the pair of a config, and the verdict; return the exit code, 1 where that is no."""
    from stillhouse.progress.terminal import error_console
    from stillhouse.training.pair.finding import verdict_of

    with shown_progress(error_console(), config):
        from tasks.pair.stage import examine_config

        findings = examine_config(config, num_prompts)
    colors = {"fine": "green", "unknown": None, "change": "yellow", "no": "red"}
    for finding in findings:
        mark = typer.style(f"{finding.level:<8}", fg=colors[finding.level])
        typer.echo(f"{mark} {finding.name:<20} {finding.detail}")
    verdict = verdict_of(findings)
    reasons = ", ".join(found.name for found in findings if found.level in ("change", "no"))
    typer.echo(f"\n{typer.style(verdict, bold=True)}{': ' if reasons else ''}{reasons}")
    return 1 if verdict == "no" else 0


def send_tracking(store: Store = "runs") -> None:
    """Send to MLflow the records that it did not take during a run: those of tracking-fallback.jsonl.

    Broken off, the same command goes on where it was.
    """
    from stillhouse.tracking.send import send_fallback

    folder = ArtifactStore(store).root
    sent = send_fallback(folder)
    counts = ", ".join(f"{count} {kind}" for kind, count in sent.by_kind.most_common())
    typer.echo(f"sent {counts}" if counts else f"{folder}: nothing to send")
    for reason, count in sent.left.most_common():
        typer.echo(f"left {count}: {reason}", err=True)
