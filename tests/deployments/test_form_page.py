"""A person at the form of a deployment in Prefect's pages: what it shows, and what a run is given by it."""

from pathlib import Path
from typing import Any

import pytest
from prefect.utilities.callables import parameter_schema

from deployments.forms import folded
from flows.distill import distill
from stillhouse.config import load_config, parse_config
from stillhouse.config.form import unfolded
from tasks.server.deploying import read_configs
from tests.deployments.processes import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
HIGHEST = 8000
"""Pixels of the page with all sections closed, 1,300 wide."""
_HEIGHT = "Math.max(...[...document.querySelectorAll('*')].map(element => element.scrollHeight))"


@pytest.fixture(scope="module")
def deployment(prefect: Any) -> Any:
    """Return a deployment of the demo, which no worker runs."""
    config = read_configs(str(CONFIGS))["demo"]
    schema = folded(parameter_schema(distill).model_dump(mode="json", exclude_unset=True), config)
    flow = prefect.post("flows/", {"name": "distill"})
    body = {"name": "demo", "flow_id": flow["id"], "parameters": {"config": config}, "parameter_openapi_schema": schema}
    return prefect.post("deployments/", {**body, "enforce_parameter_schema": True})


@pytest.fixture
def form(page: Any, prefect: Any, deployment: dict[str, Any]) -> Any:
    page.goto(f"{prefect.url}/v2/deployments/deployment/{deployment['id']}/run", wait_until="commit")
    page.locator("input[type=password]").or_(page.get_by_role("button", name="Submit")).first.wait_for()
    if page.locator("input[type=password]").count():
        prefect.log_in(page)
    page.get_by_role("tab", name="Change", exact=True).last.wait_for()
    return page


def _property(place: Any, title: str) -> Any:
    """Return what the form shows of the first property of that title: name, help and input."""
    group = "xpath=ancestor::div[contains(concat(' ', @class, ' '), ' group ')][1]"
    return place.get_by_text(f"{title} (Optional)", exact=True).first.locator(group)


def _input(place: Any, title: str) -> Any:
    return _property(place, title).locator("input, textarea").first


def _submitted(form: Any, prefect: Any, number: int) -> Any:
    """Return the config that the newest of so many runs was given."""
    form.get_by_role("button", name="Submit").click()
    runs = wait_until(
        lambda: len(found := prefect.post("flow_runs/filter", {"sort": "START_TIME_DESC"})) == number and found,
        f"{number} runs are there",
    )
    newest = max(runs, key=lambda run: str(run["created"]))
    return parse_config(unfolded(newest["parameters"]["config"]), origin="the form")


def test_an_unedited_form_is_short_and_gives_the_config_of_the_file(form: Any, prefect: Any) -> None:
    assert 1000 < form.evaluate(_HEIGHT) <= HIGHEST
    assert _submitted(form, prefect, 1) == load_config(CONFIGS / "demo.yaml")


def test_a_field_on_top_and_one_behind_a_fold_are_changed_and_no_other(form: Any, prefect: Any) -> None:
    rollouts = _property(form, "Rollouts")
    _input(rollouts, "Max prompts").fill("16")
    rollouts.get_by_role("tab", name="Change", exact=True).click()
    assert _input(rollouts, "Max corrections").input_value() == "1"
    timeout = _input(rollouts, "Timeout (s)")
    timeout.fill("0")
    form.get_by_role("button", name="Submit").click()
    refused = rollouts.get_by_text("0 is less than or equal to the minimum of 0").first
    refused.wait_for()
    timeout.fill("60")
    # The page looks at its fields again at the next click, and starts the run at the one after it.
    form.get_by_role("button", name="Submit").click()
    refused.wait_for(state="hidden")
    # A notification stays while the mouse is on it.
    form.mouse.move(0, 0)
    changed = ["rollouts.max_prompts=16", "rollouts.timeout_s=60"]
    assert _submitted(form, prefect, 2) == load_config(CONFIGS / "demo.yaml", changed)


def test_a_fold_that_is_closed_again_changes_nothing_and_an_empty_field_is_at_its_default(
    form: Any, prefect: Any
) -> None:
    runtime = _property(form, "Runtime")
    runtime.get_by_role("tab", name="Change", exact=True).click()
    _input(runtime, "Max attempts").fill("9")
    runtime.get_by_role("tab", name="Unchanged", exact=True).click()
    student = _property(form, "Student")
    student.get_by_role("tab", name="Change", exact=True).click()
    _input(student, "LoRA rank").fill("")
    _input(_property(form, "Rollouts"), "Max prompts").fill("")
    assert _submitted(form, prefect, 3) == load_config(CONFIGS / "demo.yaml", ["rollouts.max_prompts=null"])
