"""The verb that tells what a config will cost."""

from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer

from flows.verbs import Overrides
from flows.verbs.run_config import config_in, shown_progress
from stillhouse.processes.gc_tuning import rarely_collected


def plan(
    config: Annotated[Path, typer.Argument(metavar="CONFIG.yaml", help="A config such as configs/demo.yaml.")],
    rollouts: Annotated[
        int, typer.Option("-n", "--rollouts", min=0, help="Rollouts to judge by; 0 asks for none and tells less.")
    ] = 3,
    devices: Annotated[
        str | None, typer.Option(metavar="8x80GiB", help="GPUs of a host to check the memory of; else this machine's.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
    overrides: Overrides = None,
) -> None:
    """Tell what `distill` will take of GPUs and ask of hosted models, what that costs, and how far the budget goes.

    The few rollouts are kept as those of the run, which does not ask for them again. What the journal holds is paid
    for and left out. Ranges hold 19 of 20 outcomes; more rollouts narrow them.
    """
    settings = config_in(config, overrides or ())
    import orjson
    from rich.console import Console

    from stillhouse.forecast.layout import layout_of
    from stillhouse.forecast.text import COLUMNS, rows, summary
    from stillhouse.progress.terminal import error_console, table
    from tasks.forecast import plan as lines_of

    layout = layout_of(settings, devices)
    with rarely_collected(), shown_progress(error_console(), settings) if rollouts else nullcontext():
        lines = lines_of(settings, rollouts)
    said = [*summary(lines, settings.budget), *layout]
    if as_json:
        return typer.echo(orjson.dumps({"stages": lines, "summary": said}, option=orjson.OPT_INDENT_2))
    console = Console()
    console.print(table(COLUMNS, rows(lines)))
    for line in said:
        console.print(line, highlight=False, markup=False, soft_wrap=True)
