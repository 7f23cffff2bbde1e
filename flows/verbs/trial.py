"""The verb that tries a config: a few rollouts, shown as they end."""

import sys
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flows.verbs import ApiKeyEnv, BaseUrl, Entries, Overrides, Teacher
from flows.verbs.run_config import config_from, row_numbers, shown_progress
from stillhouse.config import DistillConfig
from stillhouse.errors import StillhouseError
from stillhouse.store import exact_json

if TYPE_CHECKING:
    from stillhouse.trial.rollout import ScoredRollout


def try_config(
    source: Annotated[
        Path, typer.Argument(metavar="INPUT", help="A config, or prompts: .txt, .jsonl, .csv, .parquet.")
    ],
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder for a JSON file of each rollout.")] = Path(
        "rollouts"
    ),
    num: Annotated[int, typer.Option("-n", "--num", min=1, help="Prompts to use.")] = 3,
    entries: Entries = None,
    tools: Annotated[str | None, typer.Option("-t", "--tools", help="File of @tool functions.")] = None,
    rewards: Annotated[str | None, typer.Option("-r", "--rewards", help="File of @reward functions.")] = None,
    model: Teacher = None,
    base_url: BaseUrl = None,
    api_key_env: ApiKeyEnv = None,
    overrides: Overrides = None,
) -> None:
    """Try a config on a few prompts: show each rollout as it ends, with its tools, rewards and cost.

    Completions are kept as `generate` keeps them: neither it nor the same command requests them again.
    """
    options = {
        "tools.file": tools,
        "tools.rewards_file": rewards,
        "teacher.model": model,
        "teacher.base_url": base_url,
        "runtime.api_key_env": api_key_env,
        "prompts.max_prompts": num if entries is None else None,
        "prompts.entries": None if entries is None else row_numbers(entries),
    }
    config = config_from(source, options, overrides or ())
    import orjson
    from rich.console import Console

    from stillhouse.progress.terminal import error_console
    from stillhouse.store.atomic import write_atomic
    from stillhouse.trial.terminal import conversation, summary

    console = error_console()
    # On one terminal the bars make room for what is printed on their own console.
    results = console if console.is_terminal and sys.stdout.isatty() else Console()
    numbers = count(1)

    def show(rollout: "ScoredRollout") -> None:
        file = output / f"{rollout.trajectory.rollout_key[:16]}.json"
        write_atomic(file, exact_json.dumps(rollout.as_json(), option=orjson.OPT_INDENT_2))
        results.print(conversation(rollout, f"rollout {next(numbers)}", file), highlight=False)

    with shown_progress(console, config):
        from tasks.trial import run_trial

        rollouts = run_trial(config, show)
    for line in summary(rollouts):
        results.print(line)
    if failed := [rollout for rollout in rollouts if rollout.has_failed or rollout.scores.errors]:
        raise StillhouseError(f"{len(failed)} of {len(rollouts)} rollouts failed or have a reward that failed")


def show_preview(config: DistillConfig, num_rows: int) -> None:
    """Show the first rows of a run's dataset as the student will see them; the run pays for none of them again."""
    from rich.console import Console

    from stillhouse.progress.terminal import error_console
    from stillhouse.trial.preview import PreviewRow, preview_text

    console = error_console()
    results = console if console.is_terminal and sys.stdout.isatty() else Console()
    numbers = count(1)

    def show(row: PreviewRow) -> None:
        results.print(preview_text(row, f"row {next(numbers)}"), highlight=False)

    with shown_progress(console, config):
        from tasks.trial import run_preview

        rows = run_preview(config, num_rows, show)
    results.print("What is [bold green]green[/] is learnt, the rest is context.", highlight=False)
    kept = sum(row.is_kept for row in rows)
    told = f"{kept} of {len(rows)} rows pass the filters; `stillhouse plan` tells what all cost"
    results.print(told, highlight=False)
    results.print("The same command without --preview goes on from here: these answers are not asked for again.")
