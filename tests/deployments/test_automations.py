from datetime import timedelta
from fnmatch import fnmatch
from uuid import uuid4

import pytest
from prefect.events.schemas.automations import AutomationCore, EventTrigger, ResourceSpecification

from deployments.automations import crashes, notifications, restarts

CRASHES = list(crashes(30, timedelta(minutes=10)))
NOTIFICATIONS = list(notifications(uuid4()))


def concerns(automation: AutomationCore, flow: str) -> bool:
    assert isinstance(automation.trigger, EventTrigger)
    related = automation.trigger.match_related
    assert isinstance(related, ResourceSpecification)
    return related.matches({"prefect.resource.role": "flow", "prefect.resource.name": flow})


def events(automation: AutomationCore) -> set[str]:
    assert isinstance(automation.trigger, EventTrigger)
    return automation.trigger.after | automation.trigger.expect


@pytest.mark.parametrize("automation", CRASHES, ids=lambda automation: automation.name)
def test_a_lost_run_of_ours_is_marked_as_crashed_also_that_of_a_stage_for_which_another_waits(
    automation: AutomationCore,
) -> None:
    assert concerns(automation, "distill")
    assert concerns(automation, "run-stage")
    assert not concerns(automation, "somebody-elses")


@pytest.mark.parametrize("automation", NOTIFICATIONS, ids=lambda automation: automation.name)
def test_nobody_is_told_of_a_stage_that_is_started_again(automation: AutomationCore) -> None:
    assert concerns(automation, "distill")
    assert not concerns(automation, "run-stage")


def test_a_run_that_lost_its_place_is_started_again_untold_and_a_stage_is_left_to_the_run_that_waits_for_it() -> None:
    (restart,) = restarts()
    assert concerns(restart, "distill")
    assert not concerns(restart, "run-stage")
    assert isinstance(restart.trigger, EventTrigger)
    assert isinstance(restart.trigger.match, ResourceSpecification)
    run = {"prefect.resource.id": "prefect.flow-run.1"}
    lost, ended = (f"Execution was {end}." for end in ("cancelled by the runtime environment", "aborted"))
    (told, _) = NOTIFICATIONS
    assert isinstance(told.trigger, EventTrigger)
    assert isinstance(told.trigger.match, ResourceSpecification)
    assert restart.trigger.match.matches({**run, "prefect.state-message": lost})
    assert not restart.trigger.match.matches({**run, "prefect.state-message": ended})
    assert not told.trigger.match.matches({**run, "prefect.state-message": lost})
    assert told.trigger.match.matches({**run, "prefect.state-message": ended})


def test_a_failure_concerns_one_automation_alone_so_that_a_locked_database_makes_nobody_hear_of_it_twice() -> None:
    """Prefect delivers an event again to all automations that it concerns when one of them could not handle it."""
    (told_of_failures, _) = NOTIFICATIONS
    for failure in events(told_of_failures):
        concerned = [one.name for one in (*CRASHES, *NOTIFICATIONS) if any(fnmatch(failure, e) for e in events(one))]
        assert concerned == [told_of_failures.name], failure


def test_a_run_that_a_worker_is_about_to_start_is_still_waited_for() -> None:
    _, never_started = CRASHES
    assert isinstance(never_started.trigger, EventTrigger)
    assert {"prefect.flow-run.Pending", "prefect.flow-run.Submitting"} <= never_started.trigger.after
    assert "prefect.flow-run.Submitting" not in never_started.trigger.expect
