import io
import logging

import pytest
from rich.console import Console

from stillhouse.terminal import TerminalProgress, show_warnings, table


def _console(*, terminal: bool, width: int = 100) -> tuple[Console, io.StringIO]:
    written = io.StringIO()
    return Console(file=written, force_terminal=terminal, width=width, color_system=None), written


def test_piped_output_is_a_line_now_and_then_and_one_at_the_end() -> None:
    console, written = _console(terminal=False)
    with TerminalProgress(console) as progress:
        for done in range(1, 101):
            progress.update("rollouts", done, 100, tokens_per_s=12.3456, limit=8)
    lines = written.getvalue().splitlines()
    assert [line.split()[:2] for line in lines] == [["rollouts", "1/100"], ["rollouts", "100/100"]]
    assert lines[-1].endswith("tokens per s 12.3  limit 8")


def test_each_stage_has_lines_of_its_own_and_an_unknown_total_is_said() -> None:
    console, written = _console(terminal=False)
    with TerminalProgress(console) as progress:
        progress.update("sft", 0, None)
        progress.update("on_policy", 1, 4)
    assert [line.split() for line in written.getvalue().splitlines()] == [["sft", "0/?"], ["on_policy", "1/4"]]


def test_a_fact_is_shown_as_it_is_and_not_read_as_markup() -> None:
    console, written = _console(terminal=False)
    with TerminalProgress(console) as progress:
        progress.update("rollouts", 1, 1, reason="[bold]429[/]")
    assert "[bold]429[/]" in written.getvalue()


@pytest.mark.parametrize("width", [60, 80, 120])
def test_a_terminal_shows_a_bar_with_its_count_whatever_its_width(width: int) -> None:
    console, written = _console(terminal=True, width=width)
    with TerminalProgress(console) as progress:
        progress.update("rollouts", 3, 40, reason="growing: nothing refused yet and much more to say than fits here")
    assert "rollouts" in written.getvalue()
    assert "3/40" in written.getvalue()


def test_warnings_of_stillhouse_are_shown_the_first_few_of_each_kind() -> None:
    console, written = _console(terminal=False)
    logger = logging.getLogger("stillhouse.rollouts.engine")
    with show_warnings(console):
        for index in range(10):
            logger.warning("rollout %s failed", index)
        logger.warning("the journal is [slow]")
        logger.info("not for a terminal")
        logging.getLogger("prefect").warning("not ours")
    logger.warning("rollout %s failed", "late")
    assert written.getvalue().splitlines() == [
        "warning: rollout 0 failed",
        "warning: rollout 1 failed",
        "warning: rollout 2 failed (more of these are not shown)",
        "warning: the journal is [slow]",
    ]


def test_figures_stand_to_the_right_and_words_to_the_left() -> None:
    console, written = _console(terminal=False)
    console.print(table(["stage", "tokens"], [["rollouts", "14,341"], ["sft", "9"], ["dataset", ""]]))
    lines = [line.strip() for line in written.getvalue().splitlines()]
    rollouts, sft = (next(line for line in lines if line.startswith(name)) for name in ("rollouts", "sft"))
    assert len(rollouts) == len(sft)
    assert sft.endswith(" 9")
