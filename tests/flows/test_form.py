"""The form of a flow: what Prefect's server refuses before a run is there, and how the fields are called."""

import json
from functools import cache
from typing import Any

import pytest
from prefect.flows import load_flow_from_entrypoint
from prefect.utilities.callables import parameter_schema
from prefect.utilities.schema_tools.validation import validate

from stillhouse.config import DEMO
from stillhouse.config.section import field_title
from stillhouse.errors import ConfigError

LARGEST_REQUEST_BYTES = 512 * 1024
"""Of parameters; Prefect's server refuses larger ones."""


@cache
def _schema() -> dict[str, Any]:
    flow = load_flow_from_entrypoint("flows.distill.distill", use_placeholder_flow=False)
    return parameter_schema(flow).model_dump_for_openapi()


def _with(path: str, value: Any) -> dict[str, Any]:
    config = DEMO.model_dump(mode="json")
    section = config
    *above, name = path.split(".")
    for part in above:
        section = section[part]
    section[name] = value
    return config


def _is_refused(path: str, value: Any) -> bool:
    return bool(validate({"config": _with(path, value)}, _schema(), raise_on_error=False))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("prompts.held_out_fraction", 1.0),
        ("prompts.entries", [-1]),
        ("prompts.verifier", "numerical"),
        ("rollouts.temperature", -0.1),
        ("rollouts.top_p", 0),
        ("rollouts.num_samples", 2.5),
        ("rollouts.failure_budget", 1.01),
        ("budget.max_usd", 0),
        ("dataset.contamination.ngrams", [0]),
        ("dataset.filters.min_student_nll", -1.0),
        ("dataset.filters.languages", ["English"]),
        ("dataset.judge.rubric", [{"name": "Not a name", "question": "?"}]),
        ("approval.timeout_minutes", 0),
        ("approval.at_timeout", "ask again"),
        ("student.dtype", "float16"),
        ("sft.learning_rate", "1e-4"),
        ("sft.epochs", 3),
        ("on_policy.max_staleness", 17),
        ("evaluation.confidence", 1.0),
        ("tracking.register_as", "team/model"),
        ("runtime.launcher", "slurm"),
        ("runtime.refresh", ["everything"]),
    ],
)
def test_a_wrong_value_is_refused_in_the_form(path: str, value: Any) -> None:
    assert _is_refused(path, value)


@pytest.mark.parametrize(
    ("path", "value"),
    [("rollouts.max_prompts", None), ("prompts.entries", [0, 5]), ("approval.at_timeout", "approve")],
)
def test_a_right_value_is_taken(path: str, value: Any) -> None:
    assert not _is_refused(path, value)


@pytest.mark.parametrize(
    ("path", "value", "told"),
    [
        ("tools.builtin", ["search"], "tools.builtin names search, but tools.search_url is not set"),
        ("sft.min_learning_rate", 1.0, "min_learning_rate 1.0 is above learning_rate 0.0005"),
        ("dataset.filters.duplicates", "near", "filters.duplicates is near, but duplicates.near is off: switch it on"),
    ],
)
def test_what_no_schema_can_say_is_told_before_anything_is_done(path: str, value: Any, told: str) -> None:
    flow = load_flow_from_entrypoint("flows.distill.distill", use_placeholder_flow=False)
    assert not _is_refused(path, value)
    with pytest.raises(ConfigError) as failure:
        flow(config=_with(path, value))
    assert told in str(failure.value)


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


def test_every_field_has_such_a_title_and_every_section_says_what_it_is() -> None:
    for section in _schema()["definitions"].values():
        assert section.get("description"), section
        for name, field in section.get("properties", {}).items():
            assert field["title"] == field_title(name)
