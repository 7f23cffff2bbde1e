"""What `stillhouse doctor --pair` shows."""

import shutil
import sys
import textwrap
from typing import TYPE_CHECKING, Final

import typer

from flows.verbs.run_config import shown_progress
from stillhouse.config import DistillConfig

if TYPE_CHECKING:
    from stillhouse.pair import PairFinding

_MARKS: Final = {
    "fine": ("ok", "green"),
    "unknown": ("unknown", None),
    "change": ("CHANGE", "yellow"),
    "no": ("NO", "red"),
}
_NAME_WIDTH: Final = 20
_MARK_WIDTH: Final = 8


def show_pair(config: DistillConfig, num_prompts: int) -> int:
    """Prints what is found about the pair of a config, and the verdict; the exit code: 1 where that is no.

    Raises:
        StillhouseError: as `examine_config`.
    """
    from stillhouse.pair import verdict_of
    from stillhouse.progress.terminal import error_console

    with shown_progress(error_console(), config):
        from tasks.pair.examine import examine_config

        findings = examine_config(config, num_prompts)
    for finding in findings:
        typer.echo(_line(finding))
    verdict = verdict_of(findings)
    reasons = {"go": ("fine", "unknown"), "go with this changed": ("change",), "no": ("no",)}[verdict]
    named = "" if verdict == "go" else ": " + ", ".join(found.name for found in findings if found.level in reasons)
    color = {"go": "green", "go with this changed": "yellow", "no": "red"}[verdict]
    typer.echo(f"\n{typer.style(verdict, fg=color, bold=True)}{named}")
    return 1 if verdict == "no" else 0


def _line(finding: "PairFinding") -> str:
    """Mark, name and detail; on a terminal the detail is wrapped beside them."""
    mark, color = _MARKS[finding.level]
    first = f"{typer.style(f'{mark:<{_MARK_WIDTH}}', fg=color)}{finding.name:<{_NAME_WIDTH}} "
    width = shutil.get_terminal_size().columns - _MARK_WIDTH - _NAME_WIDTH - 1
    if not sys.stdout.isatty() or width < _NAME_WIDTH:
        return first + finding.detail
    lines = textwrap.wrap(finding.detail, width, break_long_words=False, break_on_hyphens=False)
    return first + f"\n{'':<{_MARK_WIDTH + _NAME_WIDTH + 1}}".join(lines)
