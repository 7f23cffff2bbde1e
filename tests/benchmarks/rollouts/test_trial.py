import json
import sys
from pathlib import Path

import pytest

from benchmarks.rollouts.__main__ import main
from benchmarks.rollouts.scenarios import Scenario
from benchmarks.rollouts.trial import Score, run_trial
from tests.provider.answers import Service
from tests.provider.limits import Limits, Step


def trial(scenario: Scenario, side: str, folder: Path) -> Score:
    return run_trial(scenario, 1.0, side, Path(sys.executable), folder)


@pytest.mark.parametrize("side", ["engine", "script", "batches", "floor"])
def test_every_side_of_this_environment_brings_every_row(side: str, tmp_path: Path) -> None:
    score = trial(Scenario("", Service(latency_s=0.01), 30, concurrency=8), side, tmp_path)
    assert score.is_whole, (tmp_path / "log.txt").read_text()
    assert (score.billed_over_useful, score.refused_per_row, score.num_rebilled) == (1.0, 0.0, None)
    assert (score.ended, score.exit_code) == ("itself", 0)
    assert 1 <= score.peak_in_flight <= 8
    assert score.cpu_s_per_1000 > 0
    # The floor has ended after a fifth of a second, when its memory may have been looked at only as it began.
    assert score.peak_rss_mb > (1 if side == "floor" else 10)


@pytest.mark.slow
@pytest.mark.parametrize("side", ["engine", "batches"])
def test_a_killed_client_goes_on_and_is_billed_for_what_was_in_flight(side: str, tmp_path: Path) -> None:
    service = Service(latency_s=0.1, tool_turns=2)
    score = trial(Scenario("", service, 12, concurrency=4, kills=(0.4,)), side, tmp_path)
    assert score.is_whole, (tmp_path / "log.txt").read_text()
    rebilled, in_flight = score.num_rebilled or 0, score.in_flight_at_kills or 0
    assert 0 < in_flight <= 12
    # Batches keep rows and no turns.
    assert rebilled <= in_flight if side == "engine" else rebilled > 0


@pytest.mark.slow
def test_what_is_lost_and_doubled_is_counted(tmp_path: Path) -> None:
    # Batches are halved at a 429 and asked again from their start; at one prompt a batch a 429 loses the prompt.
    steps = (Step(at_s=0, limits=Limits(requests_per_minute=300, burst_requests=3)),)
    scenario = Scenario("", Service(latency_s=0.01, steps=steps), 9, concurrency=4)
    score = trial(scenario, "batches", tmp_path)
    assert min(score.num_lost, score.num_doubled, score.refused_per_row) > 0
    assert score.billed_over_useful > (9 - score.num_lost) / 9


def test_a_side_that_cannot_start_is_scored_and_not_raised(tmp_path: Path) -> None:
    score = trial(Scenario("", Service(), 4), "distilabel", tmp_path)
    assert (score.num_lost, score.share_of_optimum, score.exit_code) == (4, 0.0, 1)
    assert "No module named 'distilabel'" in (tmp_path / "log.txt").read_text()


@pytest.mark.slow
def test_the_command_writes_a_table_and_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    main(["--scenarios", "S1", "--sides", "script", "floor", "--quick", "--out", str(out)])
    figures = json.loads((out / "scores.json").read_text())
    assert [len(figures["scores"]["S1"][side]) for side in ("script", "floor")] == [1, 1]
    assert 0 < figures["scores"]["S1"]["floor"][0]["share_of_optimum"] <= 1.5
    table = (out / "table.md").read_text()
    assert "## S1: no limit, 200 ms" in table
    assert table.count("\n| script |") == 1
    assert "floor: " in capsys.readouterr().out
