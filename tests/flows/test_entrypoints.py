"""Flows as Prefect loads them: from a path or a module, strictly, with a parameter form a person can fill in."""

import importlib
import sys
from collections.abc import Iterator
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

import pytest
from prefect import Flow
from prefect.flows import load_flow_from_entrypoint
from prefect.utilities.callables import parameter_schema
from prefect.utilities.schema_tools.hydration import HydrationContext, hydrate
from prefect.utilities.schema_tools.validation import validate

from stillhouse.config import DEMO, DistillConfig, load_config
from stillhouse.config.section import Section
from stillhouse.errors import ConfigError

ROOT = Path(__file__).resolve().parents[2]
FLOWS = {
    "distill": "distill",
    "evaluate_models": "evaluate-models",
    "generate": "generate",
    "train_on_policy": "train-on-policy",
    "train_sft": "train-sft",
}
"""Name of the flow by the stem of its file."""


def _load(stem: str) -> Flow[Any, Any]:
    return load_flow_from_entrypoint(f"flows.{stem}.{stem}", use_placeholder_flow=False)


def _nodes(schema: Any) -> Iterator[dict[str, Any]]:
    if isinstance(schema, dict):
        yield schema
        for value in schema.values():
            yield from _nodes(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from _nodes(value)


def test_every_file_in_flows_is_a_flow_the_package_or_the_shell() -> None:
    assert {path.stem for path in (ROOT / "flows").glob("*.py")} == {*FLOWS, "run_stage", "__init__", "cli"}


@pytest.mark.parametrize("stem", FLOWS)
def test_a_flow_loads_strictly_by_path(stem: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.syspath_prepend(str(ROOT))  # restores what the loader leaves on the path
    flow = load_flow_from_entrypoint(f"flows/{stem}.py:{stem}", use_placeholder_flow=False)
    assert flow.name == FLOWS[stem]


@pytest.mark.parametrize("stem", FLOWS)
@pytest.mark.parametrize("entrypoint", ["flows.{stem}.{stem}", "flows.{stem}:{stem}"])
def test_a_flow_loads_strictly_by_module(entrypoint: str, stem: str) -> None:
    flow = load_flow_from_entrypoint(entrypoint.format(stem=stem), use_placeholder_flow=False)
    assert flow.name == FLOWS[stem]


@pytest.mark.parametrize("stem", [*FLOWS, "cli"])
def test_no_flow_file_takes_the_name_of_something_that_can_be_imported(stem: str) -> None:
    """Loaded by path, a flow file becomes the top-level module of its stem and would hide another."""
    elsewhere = [entry for entry in sys.path if Path(entry).resolve() != ROOT / "flows"]
    assert stem not in sys.stdlib_module_names
    assert PathFinder.find_spec(stem, elsewhere) is None


@pytest.mark.parametrize("stem", FLOWS)
def test_a_flow_file_defines_its_flow_and_nothing_else(stem: str) -> None:
    module = importlib.import_module(f"flows.{stem}")
    own = [name for name, value in vars(module).items() if getattr(value, "__module__", None) == module.__name__]
    assert own == [stem]


@pytest.mark.parametrize("stem", FLOWS)
def test_the_form_has_one_parameter_with_all_its_defaults(stem: str) -> None:
    schema = parameter_schema(_load(stem)).model_dump_for_openapi()
    assert list(schema["properties"]) == ["config"]
    assert schema.get("required", []) == []
    assert schema["properties"]["config"]["default"] == DEMO.model_dump(mode="json")
    assert load_config(ROOT / "configs" / "demo.yaml") == DEMO


@pytest.mark.parametrize("stem", FLOWS)
def test_the_form_holds_no_choice_between_objects(stem: str) -> None:
    """Prefect's form shows alternatives as tabs and cannot tell objects apart: only `value | null` is safe."""
    schema = parameter_schema(_load(stem)).model_dump_for_openapi()
    for node in _nodes(schema):
        assert "oneOf" not in node
        assert "discriminator" not in node
        alternatives = node.get("anyOf", [])
        assert all("$ref" not in one and one.get("type") not in {"object", None} for one in alternatives), node
        assert len([one for one in alternatives if one["type"] != "null"]) <= 1


def _sections_in(section: type[Section]) -> Iterator[type[Section]]:
    yield section
    for field in section.model_fields.values():
        if isinstance(field.annotation, type) and issubclass(field.annotation, Section):
            yield from _sections_in(field.annotation)


@pytest.mark.parametrize("stem", FLOWS)
def test_every_field_of_the_form_has_its_place_and_explains_itself(stem: str) -> None:
    schema = parameter_schema(_load(stem)).model_dump_for_openapi()
    sections = [node for node in schema["definitions"].values() if node.get("type") == "object"]
    # In tuples of sections, which the fields' own types do not show.
    in_tuples = {"McpServerConfig", "Criterion", "SftSource", "OnPolicyTeacher", "Divergence", "Margin"}
    names = {one.__name__ for one in _sections_in(DistillConfig)} | in_tuples
    assert {section["title"] for section in sections} == names
    for section in sections:
        assert section["additionalProperties"] is False
        fields = section["properties"]
        assert [field["position"] for field in fields.values()] == list(range(len(fields)))
        if section["title"] != "DistillConfig":
            assert all(field.get("description") for field in fields.values()), section["title"]


@pytest.mark.parametrize("stem", FLOWS)
def test_the_form_takes_its_own_defaults_and_refuses_a_wrong_value(stem: str) -> None:
    """The check of Prefect's server before a run is scheduled."""
    schema = parameter_schema(_load(stem)).model_dump_for_openapi()
    defaults = DistillConfig().model_dump(mode="json")

    def errors(config: dict[str, Any]) -> list[Any]:
        given = hydrate({"config": config}, HydrationContext(raise_on_error=True))
        return list(validate(given, schema, raise_on_error=False))

    assert errors(defaults) == []
    wrong = {**defaults, "sft": {**defaults["sft"], "learning_rate": 0.0}}
    assert errors(wrong)


@pytest.mark.parametrize("stem", FLOWS)
def test_an_unknown_key_is_refused_before_anything_runs(stem: str) -> None:
    with pytest.raises(ConfigError, match=r"config: sft\.lerning_rate = 0\.0001: unknown key; did you mean"):
        _load(stem)(config={"sft": {"lerning_rate": 1e-4}})


def test_the_deployed_default_config_needs_nothing_that_is_not_there() -> None:
    """A deployment started without a parameter runs the embedded default."""
    from stillhouse.chat.refs import resolve_model

    assert DEMO.prompts.source.startswith("embedded:")
    for ref in (DEMO.teacher.model, DEMO.student.model):
        assert Path(resolve_model(ref)).is_dir()
