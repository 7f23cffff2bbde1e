"""The console script `stillhouse`: one verb a flow here, the others in `flows.verbs`.

Flows, Prefect and torch are imported when a verb runs, so that `--help` answers at once.
"""

import sys
from contextlib import suppress
from functools import partial
from importlib import import_module
from importlib.metadata import version as installed_version
from pathlib import Path
from pkgutil import resolve_name
from threading import Thread
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from flows.verbs import ApiKeyEnv, BaseUrl, Entries, Overrides, Teacher
from flows.verbs.data import EXPORT_FORMS, ExportForm, convert, export, view
from flows.verbs.machine import doctor, send_tracking, serve
from flows.verbs.plan import plan
from flows.verbs.project import init
from flows.verbs.run_config import config_from, config_in, row_numbers, scoring_config, shown_progress
from flows.verbs.students import certify, publish
from flows.verbs.trial import show_preview, try_config
from stillhouse.config import DistillConfig
from stillhouse.errors import ConfigError, StillhouseError
from stillhouse.keys import read_env_file
from stillhouse.processes.exit import without_teardown
from stillhouse.processes.gc_tuning import rarely_collected
from stillhouse.tracking.client import connect, default_uri, import_client
from stillhouse.tracking.database import is_database
from tasks.server.environment import quiet_console, set_defaults
from tasks.server.temporary_server import ensure_server, flow_on_server

if TYPE_CHECKING:
    from tasks.publish import Published

app = typer.Typer(
    help="Distil a strong language model into a small one.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Preview = Annotated[
    int | None,
    typer.Option(min=1, metavar="ROWS", help="Show so many rows as the student will see them, and end."),
]
ConfigPath = Annotated[Path, typer.Argument(metavar="CONFIG.yaml", help="A config such as configs/demo.yaml.")]


def main() -> None:
    """Entry point. Exit codes: 0 done, 1 the run failed after saving what it has, 2 wrong usage or config."""
    with without_teardown():
        run_command()


def run_command() -> None:
    """Run the command line in a process that may continue; raise SystemExit with the exit code."""
    read_env_file()
    set_defaults()
    quiet_console()
    try:
        app()
    except StillhouseError as error:
        typer.secho(f"error[{error.code}]: {error}", fg="red", err=True)
        sys.exit(error.exit_code)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"stillhouse {installed_version('stillhouse')}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None:
    pass


@app.command()
def distill(config: ConfigPath, preview: Preview = None, overrides: Overrides = None) -> None:
    """Run the whole DAG: prompts, rollouts, dataset, training, evaluation."""
    settings = config_in(config, overrides or ())
    if preview is not None:
        return show_preview(settings, preview)
    _run("flows.distill:distill", config, settings)


@app.command()
def sft(config: ConfigPath, overrides: Overrides = None) -> None:
    """Fine-tune the student on the teacher's trajectories, sampling those that are not cached."""
    _run("flows.train_sft:train_sft", config, config_in(config, overrides or ()))


@app.command("on-policy")
def on_policy(config: ConfigPath, overrides: Overrides = None) -> None:
    """Distil on what the student itself samples, starting from student.model."""
    read = config_in(config, overrides or (), writes=False)
    _run("flows.train_on_policy:train_on_policy", config, read)


@app.command()
def score(
    source: Annotated[
        Path, typer.Argument(metavar="INPUT", help="A config, or rows: .jsonl, .json, .parquet, a dataset's folder.")
    ],
    model: Teacher = None,
    base_url: Annotated[str | None, typer.Option(help="Its vLLM or SGLang server, up to and with /v1.")] = None,
    kind: Annotated[Literal["vllm", "sglang"], typer.Option(help="What the server is.")] = "vllm",
    student: Annotated[str | None, typer.Option(help="Model by whose template and tokens rows are read.")] = None,
    top_k: Annotated[
        int | None, typer.Option("-k", "--top-k", min=1, help="Most probable tokens to keep; else 20.")
    ] = None,
    overrides: Overrides = None,
) -> None:
    """Have a teacher score rows once, for the loss `kl`: each token and the most probable ones in its place.

    Run the same command again after an interruption: what was scored is not scored again.
    """
    options: dict[str, object] = {"sft.top_k": top_k, "student.model": student}
    if base_url is None:
        options["sft.teacher"] = model
    else:
        options["sft.teachers"] = [{"name": "teacher", "model": model, "kind": kind, "base_url": base_url}]
    _run("flows.score_rows:score_rows", source, scoring_config(source, options, overrides or ()))


@app.command()
def evaluate(config: ConfigPath, overrides: Overrides = None) -> None:
    """Compare student.model, champion, candidates and teacher on the held-out prompts."""
    _run("flows.evaluate_models:evaluate_models", config, config_in(config, overrides or ()))


@app.command()
def generate(
    source: Annotated[
        Path, typer.Argument(metavar="INPUT", help="A config, or prompts: .txt, .jsonl, .json, .csv, .tsv, .parquet.")
    ],
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Kept rows go here: .jsonl, .parquet.")] = None,
    form: Annotated[
        ExportForm | None,
        typer.Option(
            "--to", metavar="FORM", help=f"Form of the rows, as `export` takes it: {EXPORT_FORMS}; else by the ending."
        ),
    ] = None,
    tools: Annotated[str | None, typer.Option("-t", "--tools", help="File of @tool functions; else none.")] = None,
    model: Teacher = None,
    system: Annotated[str | None, typer.Option("-s", "--system", help="System prompt.")] = None,
    num: Annotated[int | None, typer.Option("-n", "--num", min=1, help="Most prompts to use; else all.")] = None,
    entries: Entries = None,
    concurrency: Annotated[
        int | None, typer.Option("-c", "--concurrency", min=1, help="Requests in flight at first; else 20.")
    ] = None,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Most tokens of one completion; else 2048.")] = None,
    max_turns: Annotated[int | None, typer.Option(min=1, help="Most completions of one rollout; else 10.")] = None,
    temperature: Annotated[float | None, typer.Option(min=0.0, help="Sampling temperature; else 0.7.")] = None,
    base_url: BaseUrl = None,
    api_key_env: ApiKeyEnv = None,
    preview: Preview = None,
    overrides: Overrides = None,
) -> None:
    """Sample the teacher and write a dataset, from a config or straight from a prompts file.

    Run the same command again after an interruption: completions that were received are not requested again.
    """
    options = {
        "tools.file": None if tools == "none" else tools,
        "teacher.model": model,
        "teacher.base_url": base_url,
        "rollouts.system_prompt": system,
        "rollouts.max_tokens": max_tokens,
        "rollouts.max_turns": max_turns,
        "rollouts.temperature": temperature,
        "prompts.max_prompts": num,
        "prompts.entries": None if entries is None else row_numbers(entries),
        "runtime.concurrency": concurrency,
        "runtime.api_key_env": api_key_env,
    }
    config = config_from(source, options, overrides or [])
    form = _form_of(output, form)
    if preview is not None:
        return show_preview(config, preview)
    published = _run("flows.generate:generate", source, config)
    if output is not None and form is not None and published.dataset is not None:
        from stillhouse.interop.export import export_dataset

        typer.echo(f"{output}: {export_dataset(Path(published.dataset.uri), output, form)}")


def _form_of(output: Path | None, form: ExportForm | None) -> ExportForm | None:
    """Return the form of the rows at `output`, by its ending if none is named; checked before anything is sampled."""
    if output is None:
        if form is not None:
            raise ConfigError(f"--to {form} is the form of a file; name that by --output")
        return None
    from stillhouse.interop.export import check_output

    by_ending: dict[str, ExportForm] = {".jsonl": "jsonl", ".parquet": "parquet"}
    form = form or by_ending.get(output.suffix)
    if form is None:
        raise ConfigError(f"--output {output}: expected a name ending in .jsonl or .parquet, or a form by --to")
    check_output(output, form)
    return form


app.command("test")(try_config)
app.command()(plan)
# The others, in the order in which --help shows them.
for _verb in (init, view, convert, export, publish, certify, serve, doctor, send_tracking):
    app.command()(_verb)


def _run(flow: str, source: Path, config: DistillConfig) -> "Published":
    """Run a flow, given as `module:name`, by the file `source`, with progress on the terminal; print its results."""
    ensure_server()
    from rich.console import Console
    from rich.text import Text

    from stillhouse.progress.terminal import error_console, table

    # Shown before the imports, which take a second or more.
    with shown_progress(error_console(), config) as shown:
        with rarely_collected():
            from tasks.run.run_name import run_name
            from tasks.run.summary import SUMMARY_COLUMNS

            run_flow = resolve_name(flow).with_options(flow_run_name=partial(run_name, source.stem))
        Thread(target=_import_ahead, args=[config], name="import-ahead", daemon=True).start()
        shown.say("starting the flow run")
        with flow_on_server():
            published: Published = run_flow(config)
    results = Console()
    results.print(table(SUMMARY_COLUMNS, published.summary))
    if published.promotion is not None:
        results.print(published.promotion, soft_wrap=True, highlight=False)
    width = max(map(len, published.pages))
    for purpose, hint in published.pages.items():
        results.print(Text(f"{purpose:<{width}} {hint}"), soft_wrap=True)
    return published


def _import_ahead(config: DistillConfig) -> None:
    """Prepare, while the server starts, what the flow needs later and would otherwise wait for."""
    if config.tracking.enabled:
        _connect_ahead(config)
    from stillhouse.inference.endpoint import through_package

    models = (config.teacher, config.dataset.judge.model)
    is_hosted = any(one.base_url is not None and through_package(one.base_url, one.client) for one in models)
    client = "openai_client" if is_hosted else "http_client"
    for name in (f"stillhouse.inference.{client}", "matplotlib.backends.backend_svg", "matplotlib.figure"):
        import_module(name)


def _connect_ahead(config: DistillConfig) -> None:
    """Open MLflow's database, or import its client. What is wrong the flow reports when it tries itself."""
    from stillhouse.store import ArtifactStore

    store = ArtifactStore(config.runtime.store, config.runtime.scratch)
    uri = config.tracking.uri or default_uri(store.root)
    with suppress(StillhouseError, OSError):
        store.make(config.runtime.store_mode)
        if is_database(uri):
            connect(uri)
        else:
            import_client()


if __name__ == "__main__":
    main()
