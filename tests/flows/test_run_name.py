"""Names of flow runs, as a real server keeps them."""

import re
from functools import partial
from typing import Any

import pytest
from prefect import flow
from prefect.client.orchestration import get_client
from prefect.context import FlowRunContext
from prefect.runtime import flow_run

from stillhouse.config import DistillConfig
from tasks.run.run_name import run_name

MINUTE = r"\d\d [A-Z][a-z]{2} \d\d:\d\d"
QWEN: dict[str, Any] = {"student": {"model": "Qwen/Qwen3-0.6B"}, "teacher": {"model": "anthropic/claude-haiku-4-5"}}


@flow(name="distill", flow_run_name=run_name, validate_parameters=False)
def distill(config: Any = DistillConfig()) -> tuple[str, Any]:
    with get_client(sync_client=True) as client:
        return client.read_flow_run(flow_run.id).name, flow_run.parameters["config"]


@pytest.mark.parametrize(
    ("named", "start"),
    [
        (distill, "distill, Qwen3-0.6B"),
        (distill.with_options(flow_run_name=partial(run_name, "nightly")), "nightly, Qwen3-0.6B"),
        (distill.with_options(name="generate"), "generate, claude-haiku-4-5"),
    ],
    ids=["of nobody's config", "of a file", "without a student"],
)
def test_a_run_is_named_by_its_config_its_model_and_its_minute(named: Any, start: str) -> None:
    name, _ = named(QWEN)
    assert re.fullmatch(f"{re.escape(start)}, {MINUTE}", name)


def test_a_wrong_config_has_a_name_as_well_and_is_left_as_it_is_for_the_flow_to_refuse() -> None:
    wrong = {"student": None, "teacher": {"seed": 1}}
    name, seen = distill(wrong)
    assert re.fullmatch(f"distill, {MINUTE}", name)
    assert seen == {"student": None, "teacher": {"seed": 1}}


def test_a_name_that_a_person_gave_and_that_of_a_run_tried_again_stay() -> None:
    @flow(validate_parameters=False)
    def again(config: Any) -> list[str]:
        context = FlowRunContext.get()
        assert context is not None
        assert context.flow_run is not None
        names = []
        for given in ("Tuesday's run", "nightly, Qwen3-0.6B, 27 Nov 03:30", "expensive-skylark", "Small-Stoat"):
            context.flow_run.name = given
            names.append(run_name())
        return names

    kept, tried_again, *renamed = again(QWEN)
    assert (kept, tried_again) == ("Tuesday's run", "nightly, Qwen3-0.6B, 27 Nov 03:30")
    assert all(name.startswith("again, Qwen3-0.6B, ") for name in renamed)
