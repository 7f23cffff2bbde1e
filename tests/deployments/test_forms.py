"""Folded forms, read without a server."""

from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from prefect.utilities.callables import parameter_schema
from prefect.utilities.schema_tools.validation import validate

from deployments.forms import folded
from flows.distill import distill
from stillhouse.config import DistillConfig, load_config, parse_config
from stillhouse.config.form import MORE, unfolded
from tasks.server.deploying import read_configs

CONFIG_FOLDER = Path(__file__).resolve().parents[2] / "configs"
CONFIGS = read_configs(str(CONFIG_FOLDER))


@cache
def _sections(config: str) -> dict[str, dict[str, Any]]:
    sections: dict[str, dict[str, Any]] = _form(config)["definitions"]["DistillConfig"]["properties"]
    return sections


@cache
def _form(config: str) -> dict[str, Any]:
    return folded(parameter_schema(distill).model_dump(exclude_unset=True), CONFIGS[config])


def _errors(config: dict[str, Any]) -> list[Any]:
    return validate({"config": config}, _form("demo"), raise_on_error=False, preprocess=False)


def _opened(name: str) -> dict[str, Any]:
    """Return a config as it is submitted where every section was opened and nothing was changed."""
    config = deepcopy(CONFIGS[name])
    for section, schema in _sections(name).items():
        if fold := schema.get("properties", {}).get(MORE):
            config[section][MORE] = deepcopy(fold["anyOf"][1]["default"])
    return config


@pytest.mark.parametrize("name", CONFIGS)
def test_a_form_takes_its_config_open_and_closed(name: str) -> None:
    (path,) = CONFIG_FOLDER.rglob(f"{name}.yaml")
    for config in (CONFIGS[name], _opened(name)):
        assert list(validate({"config": config}, _form(name), raise_on_error=False, preprocess=False)) == []
        assert parse_config(unfolded(config), origin="form") == load_config(path)


def test_every_field_is_shown_or_named_where_it_is_folded() -> None:
    for name, field in DistillConfig.model_fields.items():
        section, fields = _sections("demo")[name], field.annotation.model_fields  # type: ignore[union-attr]
        if "$ref" in section:
            continue
        first = section["properties"].keys() - {MORE}
        group = _form("demo")["definitions"][f"{name}-{MORE}"]["properties"]
        assert first | group.keys() == set(fields)
        fold = section["properties"][MORE]
        assert set(fold["description"].split(", ")) == {each["title"] for each in group.values()}
        assert fold["position"] > max(section["properties"][key]["position"] for key in first)


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        ("rollouts", "num_samples", 0),
        ("rollouts", "max_corrections", -1),
        ("sft", "trainer", {"schedule": "none"}),
        ("prompts", "sources", ["a.jsonl"]),
    ],
)
def test_a_wrong_value_is_refused_by_the_name_of_its_field(section: str, key: str, value: Any) -> None:
    for opened in (False, True):
        config = _opened("demo")
        holder = config[section][MORE] if opened and key in config[section][MORE] else config[section]
        holder[key] = value
        assert [str(error.absolute_path[-1]) for error in _errors(config)] == [*(value if key == "trainer" else [key])]


def test_a_config_as_a_file_has_it_is_taken() -> None:
    demo = load_config(CONFIG_FOLDER / "demo.yaml").model_dump(mode="json")
    assert list(validate({"config": demo}, _form("demo"), raise_on_error=False)) == []
    assert "'sorce'" in _errors({"prompts": {"sorce": "a"}})[0].message
