import io
import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from rich.console import Console

from stillhouse.progress.run_state import RunState, StageState
from stillhouse.progress.state import RolloutProgress, UsdRange
from stillhouse.progress.terminal import progress_on, show_warnings, table

TRAINING = {"loss": 0.8123, "token_accuracy": 0.74, "learning_rate": 1e-4, "tokens_per_s": 12_345.0, "eta_s": 372.0}
TRAINING_TEXT = "loss 0.812, token accuracy 0.74, lr 1.0e-04, 12.3k tokens/s, 6 min left"


def _console(*, terminal: bool = False, width: int = 100) -> tuple[Console, io.StringIO]:
    written = io.StringIO()
    return Console(file=written, force_terminal=terminal, width=width, color_system=None), written


@contextmanager
def _reports(*, terminal: bool = False, width: int = 100) -> Iterator[tuple[Any, io.StringIO]]:
    """Yield progress on a console, and what is written there."""
    console, written = _console(terminal=terminal, width=width)
    with progress_on(console) as progress:
        yield progress, written


def _screen(written: io.StringIO) -> list[str]:
    return re.split("[\r\n]+", re.sub(r"\x1b\[[?0-9;]*[a-zA-Z]", "", written.getvalue()))


def test_piped_output_is_a_line_now_and_then_and_one_at_the_end() -> None:
    with _reports() as (progress, written):
        for done in range(1, 101):
            progress.update("rollouts", done, 100, tokens_per_s=12.3456, limit=8)
    lines = written.getvalue().splitlines()
    assert [line.split()[:2] for line in lines] == [["rollouts", "1/100"], ["rollouts", "100/100"]]
    assert lines[-1].endswith("12.3 tokens/s, limit 8")


def test_each_stage_has_lines_of_its_own_with_facts_as_they_are_and_a_question_mark_for_an_unknown_total() -> None:
    with _reports() as (progress, written):
        progress.update("labels", 0, None)
        progress.update("on_policy", 1, 4, reason="[bold]429[/]")
        progress.update("sft", 120, 600, **TRAINING)
    labels, on_policy, sft = written.getvalue().splitlines()
    assert [labels.split(), on_policy.split()] == [["labels", "0/?"], ["on_policy", "1/4", "reason", "[bold]429[/]"]]
    assert sft == f"sft                120/600  {TRAINING_TEXT}"


def test_a_log_has_the_figures_of_a_training_and_not_what_each_step_begins_with() -> None:
    with _reports() as (progress, written):
        progress.update("on_policy", 0, None, doing="loading teachers")
        progress.update("on_policy", 100, 100, doing="training")
        progress.update("on_policy", 100, 100, teacher_kl=0.1)
    assert [line.split(maxsplit=1)[1] for line in written.getvalue().splitlines()] == [
        "0/?  loading teachers",
        "100/100  teacher kl 0.1",
    ]


@pytest.mark.parametrize("width", [60, 80, 120])
def test_a_terminal_shows_a_bar_with_its_count_whatever_its_width(width: int) -> None:
    with _reports(terminal=True, width=width) as (progress, written):
        progress.update("rollouts", 3, 40, reason="growing: nothing refused yet and much more to say than fits here")
    assert "rollouts" in written.getvalue()
    assert "3/40" in written.getvalue()


@pytest.mark.parametrize("width", [80, 120])
def test_training_says_below_its_bar_how_it_goes(width: int) -> None:
    with _reports(terminal=True, width=width) as (progress, written):
        progress.update("sft", 120, 600, **TRAINING)
    lines = _screen(written)
    assert any("sft" in line and "120/600" in line for line in lines)
    assert f"  {TRAINING_TEXT}" in [line.rstrip() for line in lines]
    assert max(map(len, lines)) <= width


def test_training_that_is_done_leaves_its_bar_with_its_headline() -> None:
    with _reports(terminal=True, width=80) as (progress, written):
        progress.update("sft", 599, 600, **TRAINING)
        progress.update("sft", 600, 600, **TRAINING)
        written.truncate(0)
    (line,) = [line for line in _screen(written) if line.strip("\0 ")]
    assert "600/600" in line
    assert line.rstrip().endswith("loss 0.812")


BUSY = RolloutProgress(
    done=12, total=400, failed=1, rows_per_s=4.0, tokens_per_s=812.0, in_flight=31, limit=32,
    limit_reason="cut from 40: the endpoint refused [429] and asked for a pause of 3 s", requests_per_minute=500.0,
    num_rate_limited=7, retries={"transient": 2}, usd=0.5, usd_projected=UsdRange(15.1, 16.7, 18.2),
)  # fmt: skip
FACTS = ["4 rows/s", "812 tokens/s", "31 of 32 in flight", "500 requests/min", "cut from 40", "1 failed", "7 refused"]
FACTS += ["2 transient", "$0.5000 spent", "$16.70 projected ($15.10 to $18.20)", "2 min left"]


@pytest.mark.parametrize("width", [80, 120, 200])
def test_rollouts_under_way_say_all_a_person_asks_for_below_their_bar(width: int) -> None:
    with _reports(terminal=True, width=width) as (progress, written):
        progress.update_rollouts("rollouts", BUSY)
    assert [fact for fact in ("12/400", *FACTS) if fact not in written.getvalue()] == []
    assert max(map(len, _screen(written))) <= width


def test_rollouts_that_are_done_leave_their_bar_with_trouble_and_cost() -> None:
    with _reports(terminal=True, width=120) as (progress, written):
        progress.update_rollouts("rollouts", BUSY)
        progress.update_rollouts("rollouts", RolloutProgress(done=400, total=400, failed=1, usd=16.5))
        written.truncate(0)
    assert "1 failed, $16.50 spent" in written.getvalue()
    assert "in flight" not in written.getvalue()


def test_rollouts_in_a_log_are_plain_lines_with_the_same_facts_at_a_sane_rate() -> None:
    with _reports() as (progress, written):
        for _ in range(100):
            progress.update_rollouts("rollouts", BUSY)
        for _ in range(2):
            progress.update_rollouts("rollouts", RolloutProgress(done=400, total=400))
    first, last = written.getvalue().splitlines()
    assert [fact for fact in FACTS if fact not in first] == []
    assert last.split()[:2] == ["rollouts", "400/400"]
    assert "price unknown" in last


def test_a_stage_in_parts_that_came_to_an_end_and_went_on_says_so() -> None:
    with _reports() as (progress, written):
        for done, total in ((10, 10), (10, 20), (20, 20)):
            progress.update_rollouts("rollouts", RolloutProgress(done=done, total=total))
    assert [line.split()[1] for line in written.getvalue().splitlines()] == ["10/10", "20/20"]


@pytest.mark.parametrize("terminal", [True, False])
def test_what_a_run_will_pay_for_is_said_whole_above_its_stages(terminal: bool) -> None:
    with _reports(terminal=terminal, width=40) as (progress, written):
        progress.announce("60 requests, $0.12 in all, which is longer than a line [of it]")
    assert "plan     60 requests, $0.12 in all, which is longer than a line [of it]" in written.getvalue()


def test_warnings_of_stillhouse_are_shown_the_first_few_of_each_kind() -> None:
    console, written = _console()
    logger = logging.getLogger("stillhouse.rollouts.collector")
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


def test_what_a_stage_is_busy_with_apart_from_its_items_stands_behind_its_bar() -> None:
    with _reports(terminal=True, width=80) as (progress, written):
        progress.update("sft", 0, None, doing="importing")
        progress.update("sft", 600, 600, **TRAINING)
        progress.update("sft", 600, 600, doing="saving")
    bars = [line.split()[-1] for line in _screen(written) if " sft " in line]
    assert (bars[0], bars[-1]) == ("importing", "saving")


@pytest.mark.parametrize("width", [80, 120])
def test_the_last_line_says_where_the_run_is_and_turns_even_where_it_is_cut(width: int) -> None:
    stages = (StageState("prompts", "cached", 0.0), StageState("rollouts", "running", 1.0))
    with _reports(terminal=True, width=width) as (progress, written):
        progress.update_run(RunState(stages, "loading a model whose name is longer than any line " + "x" * 90))
        progress.update_rollouts("rollouts", BUSY)
    line = next(line for line in _screen(written) if "stage 2 of 2: rollouts, loading" in line)
    assert not line.startswith("stage")
    assert line.rstrip().endswith("\u2026")
    assert len(line) <= width


def test_a_terminal_shows_from_the_first_moment_that_something_is_under_way_until_a_stage_is() -> None:
    with _reports(terminal=True, width=80) as (progress, written):
        assert "importing" in written.getvalue()
        progress.update("labels", 1, 2)
        written.truncate(0)
    assert "labels" in written.getvalue()
    assert "importing" not in written.getvalue()


@pytest.mark.parametrize(
    ("columns", "rows", "lines"),
    [
        (
            ["stage", "accuracy", "result"],
            [["rollouts", "", "5 done"], ["labels", "", ""]],
            ["stage result", "rollouts 5 done", "labels"],
        ),
        (["stage", "result"], [["approval", "[/b] fine [sic]"]], ["stage result", "approval [/b] fine [sic]"]),
    ],
    ids=["an empty column is left out", "markup is text"],
)
def test_a_table_shows_what_is_in_it(columns: list[str], rows: list[list[str]], lines: list[str]) -> None:
    console, written = _console()
    console.print(table(columns, rows))
    head, _, *body = (" ".join(line.split()) for line in written.getvalue().splitlines() if line.strip())
    assert [head, *body] == lines


def test_figures_stand_to_the_right_and_words_to_the_left() -> None:
    console, written = _console()
    console.print(table(["stage", "tokens"], [["rollouts", "14,341"], ["sft", "9"], ["dataset", ""]]))
    lines = [line.strip() for line in written.getvalue().splitlines()]
    rollouts, sft = (next(line for line in lines if line.startswith(name)) for name in ("rollouts", "sft"))
    assert len(rollouts) == len(sft)
    assert sft.endswith(" 9")
