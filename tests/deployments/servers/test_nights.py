"""Two nights of a deployment on a team's servers: the machine dies in the first, the second finds new prompts."""

import json
import random
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
from mlflow import MlflowClient

from benchmarks.shop_teacher import append_prompts, shop_teacher
from stillhouse.embedded.shop import draw_stories
from stillhouse.testing import SimulatedProvider

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

NUM_STORIES, NUM_NEW = 300, 24
HELD_OUT: Final = 0.35


def test_a_night_whose_machine_died_is_run_again_and_the_next_asks_of_new_prompts_alone(
    serve_prefect: Any,
    serve_mlflow: Any,
    postgres: Callable[[str], str],
    shop_config: Callable[..., dict[str, Any]],
    page: Any,
    wait_until: Callable[..., Any],
    tmp_path: Path,
) -> None:
    stories = list(islice(draw_stories(random.Random(7), reserved=True), NUM_STORIES + NUM_NEW))
    prompts, store = tmp_path / "prompts.jsonl", tmp_path / "store"
    asked: list[str] = []
    append_prompts(prompts, stories[:NUM_STORIES])
    env = {"PREFECT_FLOWS_HEARTBEAT_FREQUENCY": "30", "TEACHER_KEY": "secret"}
    with (
        serve_prefect(tmp_path, database=postgres("prefect"), **env) as prefect,
        serve_mlflow(tmp_path, database=postgres("mlflow")) as mlflow,
        SimulatedProvider(shop_teacher(stories, asked)) as teacher,
    ):
        prefect.deploy("--all")
        prefect.tool("python", "deployments/automations.py")
        deployment = prefect.get("deployments/name/distill/smoke")["id"]
        config = shop_config(
            prompts,
            store,
            teacher.url,
            prompts={"held_out_fraction": 0.2},
            sft={"trainer": {"checkpoint_every_steps": 5}},
            tracking={"uri": mlflow.url},
            runtime={"api_key_env": "TEACHER_KEY"},
        )
        body = {"parameters": {"config": config}}
        httpx.patch(
            f"{prefect.api}/deployments/{deployment}", json=body, timeout=60, auth=prefect.auth
        ).raise_for_status()

        with prefect.worker() as worker:
            page.goto(f"{prefect.url}/dashboard", wait_until="commit")
            prefect.log_in(page)
            _fill_in_the_form(page, f"{prefect.url}/deployments/deployment/{deployment}/run")
            (run,) = wait_until(lambda: _submitted(prefect, deployment), "the run is there")
            config = run["parameters"]["config"]
            assert config["prompts"]["held_out_fraction"] == HELD_OUT
            wait_until(lambda: list(store.glob("training/sft-*/checkpoints/step-*")), "a checkpoint of the training")
            worker.kill()
        num_asked = len(asked)
        crashed = prefect.ended(run["id"])
        assert crashed["type"] == "CRASHED"
        assert "No heartbeat" in crashed["message"]

        with prefect.worker():
            assert prefect.ended(prefect.submit("distill/smoke", config))["type"] == "COMPLETED"
            # The evaluation alone had asked nothing yet: of the prompts held out.
            assert not set(asked[num_asked:]) & set(asked[:num_asked])
            num_asked = len(asked)
            assert _resumed_from(store) > 0
            client = MlflowClient(mlflow.url)
            assert int(client.get_registered_model("shop").aliases["champion"]) == 1

            append_prompts(prompts, stories[NUM_STORIES:])
            assert prefect.ended(prefect.submit("distill/smoke", config))["type"] == "COMPLETED"
        assert {run.info.status for run in client.search_runs(["1"])} <= {"FINISHED", "KILLED"}
    new = stories[NUM_STORIES:]
    assert set(asked[num_asked:]) <= {story.text for story in new}
    assert len(asked) > num_asked


def _fill_in_the_form(page: Any, url: str) -> None:
    """Change a field of the deployment's form in Prefect's pages and submit."""
    page.goto(url, wait_until="commit")
    named = page.locator("label", has=page.get_by_text("Held out fraction (Optional)", exact=True)).first
    around = "xpath=ancestor::div[contains(concat(' ', @class, ' '), ' schema-form-property ')][1]"
    named.locator(around).locator("input").first.fill(str(HELD_OUT))
    page.get_by_role("button", name="Submit").click()


def _submitted(prefect: Any, deployment: str) -> list[dict[str, Any]]:
    """Return flow runs of a deployment, but for those that its schedule has made."""
    runs = prefect.post("flow_runs/filter", {"flow_runs": {"deployment_id": {"any_": [deployment]}}})
    return [run for run in runs if not run["auto_scheduled"]]


def _resumed_from(store: Path) -> int:
    """Return the step at which the one training of the store went on."""
    (manifest,) = store.glob("artifacts/sft/*/manifest.json")
    step: int = json.loads(manifest.read_bytes())["artifact"]["facts"]["resumed_from_step"]
    return step
