from datetime import UTC, datetime
from pathlib import Path

from stillhouse.progress.run_state import Bar, RunState, StageState
from stillhouse.progress.state import RolloutProgress
from stillhouse.report import SampleTrajectory
from stillhouse.report.live import LiveData, render_live, write_live_page

STAGES = (StageState("rollouts", "done", 8.0), StageState("sft", "running", 1.0), StageState("comparison", "ahead"))


def _data(*, curve: list[tuple[int, float]], answer: str = "It is 5.") -> LiveData:
    sampled = RolloutProgress(done=4, total=4, limit=3, is_local=True)
    bars = {"rollouts": Bar(4, 4, 2.5, rollouts=sampled), "sft": Bar(1, 8, 0.5, {"loss": 0.25, "doing": "saving"})}
    run = RunState(STAGES, "", 125.0)
    messages = [{"role": "user", "content": "2 + 3?"}, {"role": "assistant", "content": answer}]
    row = SampleTrajectory(messages=messages, stop_reason="answered", verified=None, stage="teacher")
    as_of = datetime(2026, 1, 1, tzinfo=UTC)
    return LiveData("Stillhouse: distill", as_of, run, bars, {"sft": {"loss": curve}}, [row])


def test_the_page_says_where_the_run_is_and_reloads_itself() -> None:
    page = render_live(_data(curve=[(1, 2.0), (2, 1.0), (4, 0.5)]))
    assert '<meta http-equiv="refresh" content="3">' in page
    assert "stage 2 of 3: sft, 2 min left" in page
    assert [f'class="{status}"' in page for status in ("done", "running", "ahead")] == [True] * 3
    assert "4 of 4" in page
    assert "<b>cost</b> local" in page
    assert "loss 0.25" in page
    # The first point is the highest, above the left edge; zero is the ground line.
    assert 'd="M0.0,0.0 L100.0,45.0 L300.0,67.5"' in page


def test_a_curve_of_one_point_is_none() -> None:
    assert 'id="curves"' not in render_live(_data(curve=[(1, 2.0)]))


def test_what_a_model_wrote_stays_text() -> None:
    page = render_live(_data(curve=[], answer="<script>alert(1)</script>"))
    assert "<script" not in page
    assert "&lt;script&gt;" in page


def test_the_page_has_the_name_of_the_report_that_takes_its_place(tmp_path: Path) -> None:
    data = _data(curve=[])
    path = write_live_page(tmp_path, data)
    assert (path.name, path.read_text(encoding="utf-8")) == ("report.html", render_live(data))
