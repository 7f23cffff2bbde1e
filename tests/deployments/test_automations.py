from datetime import timedelta
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


def test_a_run_that_lost_its_place_is_started_again_and_a_stage_is_left_to_the_run_that_waits_for_it() -> None:
    (restart,) = restarts()
    assert concerns(restart, "distill")
    assert not concerns(restart, "run-stage")
    assert isinstance(restart.trigger, EventTrigger)
    assert isinstance(restart.trigger.match, ResourceSpecification)
    run = {"prefect.resource.id": "prefect.flow-run.1"}
    lost, ended = (f"Execution was {end}." for end in ("cancelled by the runtime environment", "aborted"))
    assert restart.trigger.match.matches({**run, "prefect.state-message": lost})
    assert not restart.trigger.match.matches({**run, "prefect.state-message": ended})
