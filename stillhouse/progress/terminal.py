"""Progress on a terminal: a bar for each running stage with details below it; warnings; tables."""

import logging
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Self

from rich import box
from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)
from rich.spinner import Spinner
from rich.table import Column, Table
from rich.text import Text

from stillhouse.progress.lines import LineProgress
from stillhouse.progress.run_state import Listener, RunState
from stillhouse.progress.state import Fact, RolloutProgress
from stillhouse.progress.text import facts_text, lines_of, run_text

_LINE_EVERY_S = 5.0
_QUIET_S = 15.0
_WARNINGS_OF_A_KIND = 3
_STYLES = {"reason": "dim", "trouble": "yellow"}
_CLOSING = {"trouble", "cost"}
"""Lines still shown once rollouts are done."""


class _Bars(Progress):
    """Bars, below them the details of the stages that have some, and last a line about the run."""

    def __init__(self, *columns: ProgressColumn, console: Console, expand: bool) -> None:
        self.details: dict[str, RenderableType] = {}
        self.run_line = ""
        self._spinner = Spinner("dots")
        super().__init__(*columns, console=console, expand=expand)

    def get_renderables(self) -> Iterable[RenderableType]:
        yield from super().get_renderables()
        # A copy, since rich renders in another thread while stages come and go.
        for details in list(self.details.values()):
            yield Padding(details, (0, 0, 0, 2))
        if self.run_line:
            text = Column(no_wrap=True, overflow="ellipsis", ratio=1)
            line = Table.grid(Column(width=1), text, padding=(0, 1, 0, 0), expand=True)
            line.add_row(self._spinner, Text(self.run_line))
            yield line


class TerminalProgress(Listener):
    def __init__(self, console: Console) -> None:
        self._console = console
        self._bars = _Bars(
            SpinnerColumn(finished_text="[green]:heavy_check_mark:"),
            TextColumn("{task.description}", table_column=Column(no_wrap=True, min_width=18)),
            BarColumn(bar_width=20, table_column=Column(min_width=20)),
            MofNCompleteColumn(table_column=Column(no_wrap=True, min_width=9)),
            TimeElapsedColumn(table_column=Column(no_wrap=True, min_width=7)),
            # Facts are cut to fit, never the bar.
            TextColumn("[dim]{task.fields[facts]}", table_column=Column(no_wrap=True, overflow="ellipsis", ratio=1)),
            console=console,
            expand=True,
        )
        self._tasks: dict[str, TaskID] = {}
        self._is_run_known = False

    def __enter__(self) -> Self:
        # Imports, and servers of Prefect and MLflow, take seconds before the first stage reports.
        self._bars.run_line = "importing"
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.run_line = ""
        self._bars.stop()

    def update(self, stage: str, done: int, total: int | None, **facts: Fact) -> None:
        doing = str(facts.pop("doing", ""))
        details = Text(facts_text(facts), style="dim", no_wrap=True, overflow="ellipsis") if facts else None
        headline = facts_text(dict(list(facts.items())[:1]))
        self._show(stage, done, total, details, headline, doing)

    def update_rollouts(self, stage: str, state: RolloutProgress) -> None:
        lines = lines_of(state)
        names, texts = Column(no_wrap=True, style="dim", min_width=7), Column(no_wrap=True, overflow="ellipsis")
        details = Table.grid(names, texts, padding=(0, 1))
        for name, text in lines:
            details.add_row(name, Text(text, style="dim" if text == "none" else _STYLES.get(name, "")))
        closing = ", ".join(text for name, text in lines if name in _CLOSING and text != "none")
        # Before the first request there is nothing to say but the run's own line.
        self._show(stage, state.done, state.total, details if state.limit or state.done else None, closing)

    def update_run(self, state: RunState) -> None:
        if state.page and not self._is_run_known:
            self._console.print(f"page     {state.page}", highlight=False, markup=False, soft_wrap=True)
        self._is_run_known = True
        self._bars.run_line = run_text(state)

    def announce(self, plan: str) -> None:
        """Show above the bars what the run will do and pay for."""
        self._console.print(f"plan     {plan}", highlight=False, markup=False, soft_wrap=True)

    def say(self, doing: str) -> None:
        """Show what happens before the run is known."""
        self._bars.run_line = doing

    def _show(
        self, stage: str, done: int, total: int | None, details: RenderableType | None, closing: str, doing: str = ""
    ) -> None:
        """Draw the bar with details below it; behind it what the stage is `doing`, or `closing` once all is done."""
        if not self._is_run_known:
            self._bars.run_line = ""
        if done == total:
            self._bars.details.pop(stage, None)
        elif details is not None:
            self._bars.details[stage] = details
        facts = doing or (closing if done == total else "")
        if stage not in self._tasks:
            self._tasks[stage] = self._bars.add_task(stage, completed=done, total=total, facts=facts)
        self._bars.update(self._tasks[stage], completed=done, total=total, facts=facts)


@contextmanager
def progress_on(console: Console) -> Iterator[TerminalProgress | LineProgress]:
    """Yield what shows progress on a console: bars on a terminal, plain lines where output is piped."""
    if console.is_terminal:
        with TerminalProgress(console) as progress:
            yield progress
    else:
        yield LineProgress(
            partial(console.print, highlight=False, markup=False, soft_wrap=True), _LINE_EVERY_S, _QUIET_S
        )


class _WarningLines(logging.Handler):
    """Shows the first few warnings of each kind above the bars; one cause can concern thousands of items."""

    def __init__(self, console: Console) -> None:
        super().__init__(logging.WARNING)
        self._console = console
        self._shown: Counter[str] = Counter()

    def emit(self, record: logging.LogRecord) -> None:
        self._shown[record.msg] += 1
        if self._shown[record.msg] > _WARNINGS_OF_A_KIND:
            return
        last = self._shown[record.msg] == _WARNINGS_OF_A_KIND
        line = f"{record.levelname.lower()}: {record.getMessage()}" + (" (more of these are not shown)" if last else "")
        self._console.print(Text(line, style="yellow"), soft_wrap=True)


@contextmanager
def show_warnings(console: Console) -> Iterator[None]:
    """Show Stillhouse's warnings on `console` inside the block."""
    logger = logging.getLogger("stillhouse")
    handler = _WarningLines(console)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


def error_console() -> Console:
    """Return a console on standard error; standard output is for results."""
    return Console(file=sys.stderr)


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """Return a plain table: numeric columns are right-aligned, empty ones left out."""
    result = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    filled = [index for index in range(len(columns)) if any(row[index] for row in rows)]
    for index in filled:
        figures = all(not row[index] or row[index].replace(",", "").replace(".", "").isdigit() for row in rows)
        result.add_column(columns[index], justify="right" if figures else "left", no_wrap=True)
    for row in rows:
        # As Text, since user input may look like markup.
        result.add_row(*(Text(row[index]) for index in filled))
    return result
