"""Flows as Prefect loads them: from a module, strictly, with the same parameter."""

import importlib
from pathlib import Path

import pytest
from prefect.flows import load_flow_from_entrypoint
from prefect.utilities.callables import parameter_schema

from flows.distill import distill
from stillhouse.config import DEMO, load_config
from stillhouse.errors import ConfigError

ROOT = Path(__file__).resolve().parents[2]
FLOWS = {
    "distill": "distill",
    "evaluate_models": "evaluate-models",
    "generate": "generate",
    "score_rows": "score-rows",
    "train_on_policy": "train-on-policy",
    "train_sft": "train-sft",
}
"""Name of the flow by the stem of its file."""


def test_every_file_in_flows_is_a_flow_the_package_or_the_shell() -> None:
    assert {path.stem for path in (ROOT / "flows").glob("*.py")} == {*FLOWS, "run_stage", "__init__", "cli"}


@pytest.mark.parametrize("stem", FLOWS)
def test_a_flow_file_defines_its_flow_and_nothing_else(stem: str) -> None:
    module = importlib.import_module(f"flows.{stem}")
    own = [name for name, value in vars(module).items() if getattr(value, "__module__", None) == module.__name__]
    assert own == [stem]


@pytest.mark.parametrize("stem", FLOWS)
def test_a_flow_takes_one_config_with_all_its_defaults_and_refuses_an_unknown_key(stem: str) -> None:
    flow = load_flow_from_entrypoint(f"flows.{stem}.{stem}", use_placeholder_flow=False)
    assert flow.name == FLOWS[stem]
    schema = parameter_schema(flow).model_dump_for_openapi()
    assert schema.get("required", []) == []
    assert list(schema["properties"]) == ["config"]
    assert schema["properties"]["config"]["default"] == DEMO.model_dump(mode="json")
    # What else a form has to be, test_form.py checks of one flow.
    assert schema["definitions"] == parameter_schema(distill).model_dump_for_openapi()["definitions"]
    with pytest.raises(ConfigError, match=r"config: sft\.lerning_rate = 0\.0001"):
        flow(config={"sft": {"lerning_rate": 1e-4}})


def test_the_deployed_default_config_needs_nothing_that_is_not_there() -> None:
    """A deployment started without a parameter runs the embedded default."""
    from stillhouse.chat.refs import resolve_model

    assert load_config(ROOT / "configs" / "demo.yaml") == DEMO
    assert DEMO.prompts.source.startswith("embedded:")
    for ref in (DEMO.teacher.model, DEMO.student.model):
        assert Path(resolve_model(ref)).is_dir()
