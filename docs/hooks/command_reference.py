"""The page of the commands, from the console script itself."""

from collections.abc import Iterator
from typing import Any

import typer

from flows.cli import app
from stillhouse.report.markdown import table

PAGE = "reference/commands.md"


def command_page() -> str:
    """Markdown with each verb: what it does, its arguments and its options."""
    group: Any = typer.main.get_command(app)
    parts = [
        "# Commands",
        "`stillhouse VERB --help` shows the same. Exit codes: 0 done, 1 the run failed after saving what it has, "
        "2 wrong usage or config.",
    ]
    for name, command in group.commands.items():
        parts.extend(_verb(name, command))
    return "\n\n".join(parts)


def _verb(name: str, command: Any) -> Iterator[str]:
    usage = " ".join(["stillhouse", name, *(_placeholder(one) for one in command.params if _is_argument(one))])
    yield f"## `{name}`"
    yield f"    {usage} [OPTIONS]"
    yield str(command.help)
    yield table(("", ""), map(_row, command.params))


def _row(parameter: Any) -> tuple[str, str]:
    names = [_placeholder(parameter)] if _is_argument(parameter) else [*parameter.opts, *parameter.secondary_opts]
    told = " ".join(f"`{name}`" for name in names)
    default = parameter.default
    is_shown = isinstance(default, int | str | float) and not isinstance(default, bool)
    shown = f" Default: `{default}`." if is_shown else ""
    return told, f"{parameter.help or ''}{shown}"


def _placeholder(parameter: Any) -> str:
    return str(parameter.metavar or parameter.name.upper()).strip("[]")


def _is_argument(parameter: Any) -> bool:
    return bool(parameter.param_type_name == "argument")
