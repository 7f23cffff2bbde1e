"""What `stillhouse doctor --pair` shows."""

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
    mark, color = _MARKS[finding.level]
    return f"{typer.style(f'{mark:<8}', fg=color)}{finding.name:<20} {finding.detail}"
