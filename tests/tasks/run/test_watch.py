from collections.abc import Callable

from stillhouse.types import Trajectory
from tasks.run.watch import RunWatch
from tests.tasks.run.shown import Clock, Shown


def _watch(*stages: str, **earlier: float) -> tuple[RunWatch, Shown, Clock]:
    shown, clock = Shown(), Clock()
    return RunWatch(stages, shown, earlier, clock=clock), shown, clock


def test_a_run_goes_from_stage_to_stage_and_forgets_what_the_last_one_did() -> None:
    watch, shown, clock = _watch("prompts", "sft")
    watch.say("reading")
    clock.now = 2.0
    watch.end_stage("prompts", cached=True, seconds=2.0)
    assert [(run.present, run.number, run.doing) for run in shown.runs] == [("prompts", 1, "reading"), ("sft", 2, "")]
    watch.end_stage("sft", cached=False, seconds=5.0)
    assert [(stage.status, stage.seconds) for stage in watch.state.stages] == [("cached", 2.0), ("done", 5.0)]
    assert watch.state.present == ""


def test_what_a_step_is_busy_with_stands_beside_the_figures_of_the_last() -> None:
    watch, _, _ = _watch("on_policy")
    watch.update("on_policy", 1, 4, reward=0.5)
    watch.update("on_policy", 1, 4, doing="sampling and scoring")
    assert watch.bars["on_policy"].facts == {"reward": 0.5, "doing": "sampling and scoring"}
    watch.update("on_policy", 2, 4, reward=0.6)
    assert watch.bars["on_policy"].facts == {"reward": 0.6}


def test_a_stage_that_nobody_planned_counts_where_it_ran() -> None:
    watch, _, _ = _watch("prompts", "sft")
    watch.end_stage("prompts", cached=False, seconds=1.0)
    watch.end_stage("evaluation of champion", cached=False, seconds=1.0)
    assert [stage.name for stage in watch.state.stages] == ["prompts", "evaluation of champion", "sft"]
    assert watch.state.present == "sft"


def test_the_time_left_adds_the_stages_whose_length_is_known() -> None:
    watch, _, _ = _watch("sft", "evaluation of base", "evaluation of sft", "comparison", comparison=3.0)
    watch.update("sft", 1, 10, eta_s=20.0)
    assert (watch.state.eta_s, watch.state.num_unknown) == (23.0, 2)
    watch.end_stage("sft", cached=False, seconds=30.0)
    assert watch.state.eta_s is None
    watch.end_stage("evaluation of base", cached=False, seconds=8.0)
    assert (watch.state.eta_s, watch.state.num_unknown) == (11.0, 0)


def test_the_time_left_settles_although_its_estimates_jump() -> None:
    watch, shown, clock = _watch("sft")
    for second in range(100):
        clock.now = float(second)
        watch.update("sft", second, 200, eta_s=200.0 - second + (40.0 if second % 2 else -40.0))
    left = [run.eta_s or 0.0 for run in shown.runs[50:]]
    assert all(abs(eta_s - (150.0 - place)) < 10.0 for place, eta_s in enumerate(left))


def test_the_trajectories_of_a_stage_that_has_ended_are_left_to_its_artifact(
    make_answered: Callable[..., Trajectory],
) -> None:
    watch, _, _ = _watch("rollouts", "labels")
    for number in range(5):
        watch.show_trajectory("rollouts", make_answered(f"{number}?"))
    assert [row.messages[0]["content"] for _, row in watch.last_trajectories] == ["4?", "3?", "2?"]
    assert len(watch.trajectories) == 5
    watch.end_stage("rollouts", cached=False, seconds=1.0)
    assert (len(watch.trajectories), len(watch.last_trajectories)) == (0, 3)


def test_what_a_run_will_pay_for_goes_to_what_shows_it() -> None:
    watch, shown, _ = _watch("rollouts")
    watch.announce("60 requests")
    assert shown.announced == ["60 requests"]
