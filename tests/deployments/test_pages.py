"""A person at Prefect's pages: fills in the form, answers the question, reads the artifacts, follows the link.

The pages are those that a browser is shown first, Prefect's second version.
"""

import re
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.deployments.processes import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

SHOWN = {"mlflow-run", "dataset-card", "dataset-funnel", "summary"}
_SERVE = """
import sys
from tasks.server.environment import set_defaults
set_defaults()
from prefect.types.entrypoint import EntrypointType
from flows.train_sft import train_sft
from tasks.server.deploying import read_configs
parameters = {"config": read_configs("configs", sys.argv[1:])["smoke"]}
train_sft.serve(name="pages", parameters=parameters, entrypoint_type=EntrypointType.MODULE_PATH)
"""


@pytest.fixture(scope="module")
def deployment(prefect: Any, mlflow: Any) -> Iterator[dict[str, Any]]:
    config = [f"runtime.store={prefect.folder / 'store'}", f"tracking.uri={mlflow.url}", "approval.enabled=true"]
    with prefect.launch([sys.executable, "-c", _SERVE, *config], prefect.folder / "serve.log") as serving:
        serving.wait_until(lambda: prefect.post("deployments/filter", {}), "the deployment is there")
        (found,) = prefect.post("deployments/filter", {})
        yield found


def _field(page: Any, label: str) -> Any:
    """Return the input of the form's first field of that name."""
    named = page.get_by_text(f"{label} (Optional)", exact=True).first
    return named.locator("xpath=ancestor::div[.//input or .//textarea][1]").locator("input, textarea").first


def _in_state(prefect: Any, run_id: str, state: str) -> Callable[[], bool]:
    def is_there() -> bool:
        now = prefect.state(run_id)["name"]
        assert now == state or now not in {"Failed", "Crashed", "Cancelled"}, now
        return now == state

    return is_there


def test_a_run_is_started_with_another_value_answered_and_followed_to_mlflow(
    page: Any, prefect: Any, mlflow: Any, deployment: dict[str, Any]
) -> None:
    page.goto(f"{prefect.url}/v2/deployments/deployment/{deployment['id']}/run", wait_until="commit")
    prefect.log_in(page)
    _field(page, "Held out fraction").fill("2")
    page.get_by_role("button", name="Submit").click()
    refused = page.get_by_text("2 is greater than or equal to the maximum of 1").first
    refused.wait_for()
    assert prefect.post("flow_runs/filter", {}) == []

    _field(page, "Held out fraction").fill("0.25")
    _field(page, "Max prompts").fill("16")
    # The page looks at its fields again at the next click, and starts the run at the one after it.
    page.get_by_role("button", name="Submit").click()
    refused.wait_for(state="hidden")
    # A notification stays while the mouse is on it.
    page.mouse.move(0, 0)
    page.get_by_role("button", name="Submit").click()
    (run,) = wait_until(lambda: prefect.post("flow_runs/filter", {}), "the run is there")
    given = run["parameters"]["config"]["prompts"]
    assert (given["max_prompts"], given["held_out_fraction"]) == (16, 0.25)

    wait_until(_in_state(prefect, run["id"], "Suspended"), "the run asks")
    page.goto(f"{prefect.url}/v2/runs/flow-run/{run['id']}", wait_until="commit")
    page.get_by_text("Suspended").first.wait_for()
    page.locator("button[aria-haspopup=menu]").last.click()
    page.get_by_role("menuitem", name="Resume").click()
    question = page.get_by_role("dialog")
    question.get_by_text("Train on this dataset?").wait_for()
    links = question.get_by_role("link")
    texts = ["MLflow run", "Report with rows to read", "Card of the dataset", "What each filter left"]
    assert links.all_inner_texts() == texts
    question.get_by_label("Select Decision").click()
    page.get_by_role("option", name="approve").click()
    question.get_by_role("textbox").last.fill("rows look right")
    question.get_by_role("button", name="Resume").click()

    wait_until(_in_state(prefect, run["id"], "Completed"), "the run goes on and ends")
    shown = prefect.post("artifacts/filter", {})
    # And how far each stage was that took a while.
    assert {artifact["key"] for artifact in shown} - {"rollouts", "labels", "dataset", "sft"} == SHOWN
    assert re.fullmatch(r"kept \d+ of \d+, sft: \d steps?", prefect.state(run["id"])["message"])
    told = [line["message"] for line in prefect.post("logs/filter", {"logs": {"flow_run_id": {"any_": [run["id"]]}}})]
    assert [line for line in told if line.startswith("rollouts 1 of 1 runs: ")]
    assert [line for line in told if re.match(r"dataset: \d+ kept, \d+ dropped, from the store, made on ", line)]
    # The training's own process said it.
    assert [line for line in told if line.startswith("wrote the student to ")]
    newest = {
        artifact["key"]: artifact["id"] for artifact in sorted(shown, key=lambda artifact: str(artifact["created"]))
    }
    page.goto(f"{prefect.url}/v2/artifacts/artifact/{newest['summary']}", wait_until="commit")
    page.get_by_role("cell", name="rows look right").wait_for()
    page.goto(f"{prefect.url}/v2/artifacts/artifact/{newest['mlflow-run']}", wait_until="commit")
    link = page.get_by_role("link", name="MLflow run").first.get_attribute("href")
    assert link.startswith(mlflow.url)
    page.goto(link, wait_until="commit")
    page.get_by_text("pages, embedded:student, ").first.wait_for()
    page.get_by_text("Model registry").first.wait_for()
