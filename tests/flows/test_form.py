"""The form of a flow: what Prefect's server refuses before a run is there, and how the fields are called."""

import json
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
from prefect.utilities.callables import parameter_schema
from prefect.utilities.schema_tools.hydration import HydrationContext, hydrate
from prefect.utilities.schema_tools.validation import validate

from flows.distill import distill
from stillhouse.config import DEMO, DistillConfig
from stillhouse.config.section import Section, field_title
from stillhouse.errors import ConfigError

NULLABLE_WITH_A_VALUE = {"Contamination ngrams", "Seed", "Temperature"}
LARGEST_REQUEST_BYTES = 512 * 1024
"""Of parameters; Prefect's server refuses larger ones."""


@cache
def _schema() -> dict[str, Any]:
    return parameter_schema(distill).model_dump_for_openapi()


def _with(path: str, value: Any) -> dict[str, Any]:
    config = DEMO.model_dump(mode="json")
    section = config
    *above, name = path.split(".")
    for part in above:
        section = section[part]
    section[name] = value
    return config


def _is_refused(path: str, value: Any) -> bool:
    given = hydrate({"config": _with(path, value)}, HydrationContext(raise_on_error=True))
    return bool(validate(given, _schema(), raise_on_error=False))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("prompts.held_out_fraction", 1.0),
        ("prompts.entries", [-1]),
        ("prompts.verifier", "numerical"),
        ("rollouts.temperature", -0.1),
        ("rollouts.top_p", 0),
        ("rollouts.num_samples", 2.5),
        ("runtime.failure_budget", 1.01),
        ("budget.max_usd", 0),
        ("dataset.contamination.gsm8k", 8),
        ("dataset.filters.student_nll", [-1.0, None]),
        ("dataset.filters.turns", [2]),
        ("dataset.labels.measure", ["langauge"]),
        ("dataset.filters.languages", ["English"]),
        ("dataset.judge.rubric", [{"name": "Not a name", "question": "?"}]),
        ("approval.timeout_minutes", 0),
        ("approval.enabled", "ask again"),
        ("student.dtype", "float16"),
        ("sft.learning_rate", "1e-4"),
        ("sft.epochs", 3),
        ("on_policy.max_staleness", 17),
        ("evaluation.num_samples", 0),
        ("tracking.register_as", "team/model"),
        ("runtime.launcher", "slurm"),
    ],
)
def test_a_wrong_value_is_refused_in_the_form(path: str, value: Any) -> None:
    assert _is_refused(path, value)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("rollouts.max_prompts", None),
        ("rollouts.reasoning_effort", None),
        ("rollouts.reasoning_effort", "low"),
        ("teacher.base_url", None),
        ("budget.max_usd", 2.5),
        ("prompts.entries", [0, 5]),
    ],
)
def test_a_right_value_is_taken(path: str, value: Any) -> None:
    assert not _is_refused(path, value)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("promotion.enabled", True, "promotion.enabled"),
        ("on_policy.reward_coef", 1.0, "`mixed`"),
        ("dataset.filters.turns", [3, 2], "dataset.filters.turns"),
        ("runtime.refresh", ["everything"], "runtime.refresh: everything"),
    ],
)
def test_what_no_schema_can_say_is_told_before_anything_is_done(path: str, value: Any, message: str) -> None:
    assert not _is_refused(path, value)
    with pytest.raises(ConfigError) as failure:
        distill(config=_with(path, value))
    assert message in str(failure.value)


def test_a_section_that_was_opened_is_read_as_one_of_a_file() -> None:
    with pytest.raises(ConfigError, match="did you mean 'split_seed'"):
        distill(config={"prompts": {"split_seed": "dropped", "more": {"split_sed": 1}}})


def test_form_and_values_fit_into_what_the_server_takes() -> None:
    assert len(json.dumps(_schema())) < LARGEST_REQUEST_BYTES / 2
    assert len(DEMO.model_dump_json()) < LARGEST_REQUEST_BYTES / 20


@pytest.mark.parametrize(
    ("name", "title"),
    [
        ("on_policy", "On policy"),
        ("sft", "SFT"),
        ("kl_coef", "KL coef"),
        ("request_timeout_s", "Request timeout (s)"),
        ("max_usd", "Max USD"),
    ],
)
def test_fields_are_called_as_people_write(name: str, title: str) -> None:
    assert field_title(name) == title


def _sections_in(section: type[Section]) -> Iterator[type[Section]]:
    yield section
    for field in section.model_fields.values():
        if isinstance(field.annotation, type) and issubclass(field.annotation, Section):
            yield from _sections_in(field.annotation)


def test_every_section_and_every_field_has_its_place_and_explains_itself() -> None:
    definitions = _schema()["definitions"].values()
    assert all(section.get("description") for section in definitions)
    sections = {section["title"]: section for section in definitions if section.get("type") == "object"}
    # In tuples of sections, which the fields' own types do not show.
    in_tuples = {"McpServerConfig", "Criterion", "SftSource", "OnPolicyTeacher", "Divergence"}
    assert sections.keys() == {section.__name__ for section in _sections_in(DistillConfig)} | in_tuples
    for title, section in sections.items():
        fields = section["properties"]
        assert section["additionalProperties"] is False
        assert sorted(field["position"] for field in fields.values()) == list(range(len(fields)))
        titles = [field["title"] for field in fields.values()]
        assert titles == [field_title(name) for name in fields]
        assert title == "DistillConfig" or all(field.get("description") for field in fields.values()), title


def test_what_most_people_set_comes_first_and_the_rest_is_marked_as_more() -> None:
    definitions = _schema()["definitions"]
    for section in (section for section in _sections_in(DistillConfig) if section.form_first):
        fields = definitions[section.__name__]["properties"]
        by_position = sorted(fields, key=lambda name: fields[name]["position"])
        assert tuple(by_position[: len(section.form_first)]) == section.form_first
        more = by_position[len(section.form_first) :]
        assert [name for name in by_position if fields[name].get("more")] == more


def test_no_field_is_shown_as_nothing_at_first() -> None:
    """Prefect's form shows `value | null` as tabs, of which the one of a null says `Property is type None`."""
    shown = [node for node in _nodes(_schema()) if "anyOf" in node and "title" in node]
    assert all(node["default"] is not None for node in shown)
    assert {node["title"] for node in shown} == NULLABLE_WITH_A_VALUE


def _nodes(schema: Any) -> Iterator[dict[str, Any]]:
    if isinstance(schema, dict):
        yield schema
    if isinstance(schema, dict | list):
        for value in schema.values() if isinstance(schema, dict) else schema:
            yield from _nodes(value)


def test_the_form_holds_no_choice_between_objects() -> None:
    """Prefect's form shows alternatives as tabs and cannot tell objects apart: only `value | null` is safe."""
    for node in _nodes(_schema()):
        assert not {"oneOf", "discriminator"} & node.keys()
        alternatives = node.get("anyOf", [])
        assert all("$ref" not in one and one.get("type") not in {"object", None} for one in alternatives), node
        assert len([one for one in alternatives if one["type"] != "null"]) <= 1
