"""A new stage is its module, a line in a flow, and its test: all else is read from its declaration."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prefect import flow
from prefect.client.orchestration import get_client

from stillhouse.config import DistillConfig
from stillhouse.errors import ConfigError
from stillhouse.progress.lines import LineProgress
from stillhouse.progress.run_state import RunState
from stillhouse.store import digest
from stillhouse.store.records import read_prompts, write_jsonl
from stillhouse.types import Artifact
from tasks.cache.stage import call_stage, find_cached
from tasks.prompts import PROMPTS, load_prompts, prompts_file
from tasks.publish import Published, publish, tracked
from tasks.remote.flow_run_stage import StageCall
from tasks.remote.stage_worker import run_stage_call
from tasks.run.context import RunContext, start_flow
from tasks.run.progress import shown_by
from tasks.run.stage import Stage
from tests.waiting import until

LENGTHS = Stage("lengths", 1, "{mean:.1f} characters", when=lambda config: config.sft.enabled, is_remote=True)
STAGES = (PROMPTS, LENGTHS)


@LENGTHS.made_by
def lengths_task(prompts: Artifact, key: str, context: RunContext) -> Artifact:
    lengths = [len(prompt.messages[-1]["content"]) for prompt in read_prompts(prompts_file(prompts))]
    rows = [{"length": length} for length in lengths]
    facts = {"mean": sum(lengths) / len(lengths)}
    return context.store.write(LENGTHS.name, digest(key), lambda folder: (write_jsonl(folder / "rows", rows), facts))


@flow
def measure_prompts(config: DistillConfig) -> Published:
    with tracked(config, "measure-prompts", STAGES) as run:
        prompts = load_prompts(run.config.prompts, run)
        if run.plans(LENGTHS):
            call_stage(LENGTHS, run, prompts=prompts.train)
        return publish(run)


@flow
def forgetful(config: DistillConfig) -> Published:
    with tracked(config, "forgetful", STAGES) as run:
        load_prompts(run.config.prompts, run)
        return publish(run)


class Shown(LineProgress):
    announced: tuple[str, ...] = ()

    def update_run(self, state: RunState) -> None:
        self.announced = self.announced or tuple(stage.name for stage in state.stages)


@pytest.fixture
def config_of(tmp_path: Path) -> Callable[..., DistillConfig]:
    source = tmp_path / "prompts.jsonl"
    write_jsonl(source, [{"prompt": "?" * number} for number in (1, 2, 6)])
    prompts = {"source": str(source), "held_out_fraction": 0.0}

    def make(*refresh: str, **sections: dict[str, object]) -> DistillConfig:
        runtime = {"store": str(tmp_path / "store"), "refresh": refresh}
        return DistillConfig(prompts=prompts, tracking={"enabled": False}, runtime=runtime, **sections)

    return make


def test_a_flow_shows_caches_and_sums_up_a_stage_that_it_lists(config_of: Callable[..., DistillConfig]) -> None:
    with shown_by(shown := Shown(print, 15.0)):
        published = measure_prompts(config_of())
    assert shown.announced == ("prompts", "lengths")
    assert published.summary[-1][0] == "lengths"
    assert published.summary[-1][-1] == "3.0 characters"
    assert measure_prompts(config_of()).cached == {"prompts": True, "lengths": True}
    assert measure_prompts(config_of("lengths")).cached["lengths"] is False
    assert measure_prompts(config_of(sft={"enabled": False})).cached == {"prompts": True}


def test_the_flow_runs_page_tells_why_it_was_made_and_what_came_of_it(
    config_of: Callable[..., DistillConfig], caplog: pytest.LogCaptureFixture
) -> None:
    def told(config: DistillConfig) -> list[str]:
        caplog.clear()
        state = measure_prompts(config, return_state=True)
        assert state.message == "lengths: 3.0 characters"
        assert state.result().summary[-1][-1] == "3.0 characters"
        return [line for line in caplog.messages if line.startswith("lengths")]

    made, result = told(config_of())
    assert re.fullmatch(r"lengths runs: the store has no result of version 1 \(lengths/v1-\w+\)", made)
    assert re.fullmatch(r"lengths: 3\.0 characters, in \d+ s", result)
    (cached,) = told(config_of())
    assert re.fullmatch(r"lengths: 3\.0 characters, from the store, made on \d\d \w+ \d\d:\d\d UTC", cached)
    assert "runs: runtime.refresh names it" in told(config_of("lengths"))[0]
    LENGTHS.version = 2
    try:
        assert "runs: the store has no result of version 2" in told(config_of())[0]
    finally:
        LENGTHS.version = 1


def test_the_flow_runs_graph_leads_to_it_from_the_stage_whose_artifact_it_takes(
    config_of: Callable[..., DistillConfig],
) -> None:
    def edges() -> dict[str, set[str]]:
        run_id = measure_prompts(config_of(), return_state=True).state_details.flow_run_id
        with get_client(sync_client=True) as client:

            def nodes() -> dict[str, dict[str, Any]]:
                path = {"id": run_id}
                return dict(client.request("GET", "/flow_runs/{id}/graph-v2", path_params=path).json()["nodes"])

            # Task runs are recorded as their events come in.
            assert until(lambda: len(nodes()) == len(STAGES))
            found = nodes()
        # The server names a parent once for each of the inputs.
        return {node["label"]: {found[one["id"]]["label"] for one in node["parents"]} for node in found.values()}

    expected = {"prompts": set(), "lengths": {"prompts"}}
    assert edges() == expected
    # From the store.
    assert edges() == expected


def test_another_flow_run_runs_it(config_of: Callable[..., DistillConfig]) -> None:
    run = start_flow(config_of(), "parent", STAGES)
    inputs = {"prompts": load_prompts_of(config_of())}
    assert find_cached(LENGTHS, run, inputs) is None
    flow(run_stage_call)(StageCall.of(LENGTHS, inputs, run.context).model_dump(mode="json"), STAGES)
    found = find_cached(LENGTHS, run, inputs)
    assert found is not None
    assert found.facts == {"mean": 3.0}


def load_prompts_of(config: DistillConfig) -> Artifact:
    @flow
    def load() -> Artifact:
        return load_prompts(config.prompts, start_flow(config, "load", STAGES)).train

    return load()


def test_a_flow_that_leaves_out_what_it_lists_fails_its_first_test(config_of: Callable[..., DistillConfig]) -> None:
    with pytest.raises(ValueError, match="lengths"):
        forgetful(config_of())


def test_a_refreshed_stage_that_the_flow_does_not_have_is_refused(config_of: Callable[..., DistillConfig]) -> None:
    with pytest.raises(ConfigError, match=r"runtime\.refresh: lenghts: .* prompts, lengths"):
        measure_prompts(config_of("lenghts"))
