import asyncio

import pytest
from prefect.states import Failed
from pydantic import BaseModel

from stillhouse.config import RolloutsConfig, SftConfig
from stillhouse.errors import ConfigError, TrainingError, TrainingKilled
from stillhouse.types import Artifact, Model
from tasks.cache.results import artifacts_in
from tasks.cache.stage import Stage, is_crash

ARTIFACT = Artifact(uri="/somewhere", fingerprint="f" * 64, num_rows=3, facts={"seconds": 1.0})
STAGE = Stage("dataset", version=1)


def test_two_stages_with_equal_inputs_have_different_keys() -> None:
    assert Stage("sft", version=1).key({"a": ARTIFACT}) != Stage("dataset", version=1).key({"a": ARTIFACT})


def test_a_new_version_of_a_stage_has_new_keys() -> None:
    assert Stage("dataset", version=2).key({"a": 1}) != STAGE.key({"a": 1})


def test_a_key_reads_as_stage_version_and_digest() -> None:
    assert STAGE.key({}).startswith("dataset/v1-")


def test_a_changed_field_of_the_section_changes_the_key() -> None:
    keys = {STAGE.key({"sft": SftConfig(learning_rate=rate)}) for rate in (1e-4, 2e-4)}
    assert len(keys) == 2


def test_an_artifact_counts_by_its_content_and_not_by_its_place_or_facts() -> None:
    moved = ARTIFACT.model_copy(update={"uri": "/elsewhere", "facts": {"seconds": 9.0}})
    other = ARTIFACT.model_copy(update={"fingerprint": "0" * 64})
    assert STAGE.key({"a": [ARTIFACT]}) == STAGE.key({"a": [moved]}) != STAGE.key({"a": [other]})


def test_a_model_counts_by_its_weights() -> None:
    models = [Model(name="base", ref="/a", fingerprint="x"), Model(name="sft", ref="/b", fingerprint="x")]
    assert len({STAGE.key({"model": model}) for model in models}) == 1


def test_inputs_of_equal_value_under_other_names_are_other_inputs() -> None:
    assert STAGE.key({"prompts": ARTIFACT}) != STAGE.key({"metadata": ARTIFACT})


@pytest.mark.parametrize("value", [{1, 2}, object(), RolloutsConfig])
def test_what_has_no_stable_form_is_refused_as_an_input(value: object) -> None:
    with pytest.raises(TypeError):
        STAGE.key({"value": value})


class _Nested(BaseModel):
    one: Artifact
    more: tuple[Artifact, ...]
    facts: dict[str, int]


def test_artifacts_are_found_at_any_depth() -> None:
    assert list(artifacts_in([_Nested(one=ARTIFACT, more=(ARTIFACT,), facts={"a": 1}), ARTIFACT])) == [ARTIFACT] * 3


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ConfigError("wrong"), False),
        (TrainingError("NaN at step 3"), False),
        (TrainingKilled("out of memory"), True),
        (OSError("the node went away"), True),
    ],
)
def test_crashes_are_retried_and_explained_failures_are_not(error: Exception, expected: bool) -> None:
    assert asyncio.run(is_crash(None, None, Failed(data=error))) is expected
