from collections.abc import Callable
from dataclasses import replace

import pytest

from stillhouse.progress.run_state import RunState, StageState
from stillhouse.progress.state import RolloutProgress, UsdRange
from stillhouse.progress.text import counted, dollars, duration, facts_text, lines_of, run_text, short

BUSY = RolloutProgress(
    done=312, total=2000, failed=3, num_replayed=100, rows_per_s=4.1, tokens_per_s=12_345.0, in_flight=31, limit=32,
    limit_reason="cut from 40: 429", requests_per_minute=500.0, tokens_per_minute=90_000.0, num_rate_limited=7,
    retries={"transient": 2, "stall": 1}, usd=0.42, usd_projected=UsdRange(2.51, 2.7, 2.9),
)  # fmt: skip


def test_everything_a_person_asks_for_is_said() -> None:
    assert dict(lines_of(BUSY)) == {
        "speed": "4.1 rows/s, 12.3k tokens/s, 7 min left, 100 were at hand",
        "limit": "31 of 32 in flight, 500 requests/min, 90.0k tokens/min",
        "reason": "cut from 40: 429",
        "trouble": "3 failed, 7 refused with 429, retried 1 stall, 2 transient",
        "cost": "$0.4200 spent, $2.70 projected ($2.51 to $2.90)",
    }


def test_facts_carry_their_units() -> None:
    facts = {
        "teacher_kl": 0.12345,
        "mean_completion_tokens": 31.4,
        "rows_per_s": 2.0,
        "learning_rate": 0.0,
        "eta_s": 59.6,
        "limit": 8,
        "note": "a b",
    }
    assert facts_text(facts) == "teacher kl 0.123, length 31, 2 rows/s, lr 0.0e+00, 1 min left, limit 8, note a b"


def test_what_nobody_knows_is_said_to_be_unknown_and_never_zero() -> None:
    lines = dict(lines_of(RolloutProgress(done=0, total=None)))
    assert (lines["cost"], lines["trouble"], lines["limit"]) == ("price unknown", "none", "nobody asked yet")
    assert "left" not in lines["speed"]


@pytest.mark.parametrize(
    ("state", "cost"),
    [
        (RolloutProgress(done=1, total=2, usd=0.0), "$0.00 spent"),
        (replace(BUSY, done=2000), "$0.4200 spent"),
        (RolloutProgress(done=1, total=2, is_local=True), "local"),
        (replace(BUSY, done=2000, is_local=True), "$0.4200 spent"),
        (RolloutProgress(done=2, total=2, num_replayed=2, usd=0.0), "all was at hand"),
    ],
)
def test_without_a_projection_or_at_the_end_the_cost_is_what_was_spent(state: RolloutProgress, cost: str) -> None:
    assert dict(lines_of(state))["cost"] == cost


def test_a_server_of_this_machine_that_paces_its_clients_is_no_trouble() -> None:
    local = RolloutProgress(done=1, total=2, num_rate_limited=51, retries={"transient": 6}, is_local=True)
    assert dict(lines_of(local))["trouble"] == "none"
    assert dict(lines_of(replace(local, failed=1, retries={"stall": 2})))["trouble"] == "1 failed, retried 2 stall"
    assert dict(lines_of(replace(local, num_copies=3)))["trouble"] == "3 overdue and sent twice"


SFT_RUNS = (StageState("prompts", "done", 0.1), StageState("on_policy", "running", 3.0), StageState("x", "ahead"))


@pytest.mark.parametrize(
    ("state", "text"),
    [
        (RunState(SFT_RUNS), "stage 2 of 3: on-policy"),
        (RunState(SFT_RUNS, "saving", 125.0), "stage 2 of 3: on-policy, saving, 2 min left"),
        (RunState(SFT_RUNS, "", 5.0, 1), "stage 2 of 3: on-policy, 5 s left, then 1 more stage"),
        (RunState(SFT_RUNS[:1], "writing the report"), "writing the report"),
    ],
)
def test_a_run_says_where_it_is_what_it_does_and_how_long_it_takes(state: RunState, text: str) -> None:
    assert run_text(state) == text


def test_an_unknown_total_is_a_question_mark() -> None:
    assert counted(BUSY) == "312/2,000"
    assert counted(RolloutProgress(done=5, total=None)) == "5/?"


@pytest.mark.parametrize(
    ("write", "figures"),
    [
        (
            duration,
            {0.2: "0 s", 59.4: "59 s", 59.7: "1 min", 3570: "1 h 00 min", 7620: "2 h 07 min", 273_600: "3 d 04 h"},
        ),
        (short, {0: "0", 4.14: "4.1", 12.0: "12", 812.4: "812", 4321: "4,321", 12_345: "12.3k", 1_234_567: "1.2M"}),
        (dollars, {0.00123: "$0.0012", 0.0: "$0.00", 1234.5: "$1,234.50"}),
    ],
)
def test_a_figure_is_as_exact_as_a_person_wants_it(write: Callable[[float], str], figures: dict[float, str]) -> None:
    assert {figure: write(figure) for figure in figures} == figures
