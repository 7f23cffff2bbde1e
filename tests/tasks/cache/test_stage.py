import pytest
from pydantic import BaseModel

from stillhouse.config import McpServerConfig, RolloutsConfig, SftConfig, ToolsConfig
from stillhouse.types import Artifact, Model
from tasks.cache.results import artifacts_in
from tasks.cache.stage import Stage

ARTIFACT = Artifact(uri="/somewhere", fingerprint="f" * 64, num_rows=3, facts={"seconds": 1.0})
STAGE = Stage("dataset", version=1)


def test_a_key_is_of_stage_version_sections_and_names_of_inputs() -> None:
    assert STAGE.key({}).startswith("dataset/v1-")
    sections = ({"sft": SftConfig(learning_rate=rate)} for rate in (1e-4, 2e-4))
    keys = [STAGE.key(inputs) for inputs in ({"prompts": ARTIFACT}, {"metadata": ARTIFACT}, *sections)]
    keys += [stage.key({"prompts": ARTIFACT}) for stage in (Stage("sft", version=1), Stage("dataset", version=2))]
    assert len(set(keys)) == len(keys)


def test_an_input_that_a_stage_had_once_stays_in_its_keys() -> None:
    assert Stage("dataset", version=1, removed={"once": None}).key({"a": 1}) == STAGE.key({"a": 1, "once": None})


def test_fields_that_sections_had_once_stay_in_keys_also_where_a_model_holds_the_sections() -> None:
    class Case(BaseModel):
        rollouts: RolloutsConfig
        tools: ToolsConfig

    server = McpServerConfig(name="files", url="http://files.example/mcp")
    case = Case(rollouts=RolloutsConfig(), tools=ToolsConfig(mcp=(server,)))
    rollouts, tools = case.rollouts.identity(), case.tools.identity()
    assert STAGE.key({"case": case}) == STAGE.key({"case": {"rollouts": rollouts, "tools": tools}})
    assert (rollouts["failure_budget"], tools["mcp"][0]["timeout_s"]) == (0.1, 60.0)


def test_an_artifact_counts_by_its_content_and_not_by_its_place_or_facts() -> None:
    moved = ARTIFACT.model_copy(update={"uri": "/elsewhere", "facts": {"seconds": 9.0}})
    other = ARTIFACT.model_copy(update={"fingerprint": "0" * 64})
    assert STAGE.key({"a": [ARTIFACT]}) == STAGE.key({"a": [moved]}) != STAGE.key({"a": [other]})


def test_a_model_counts_by_its_weights() -> None:
    models = [Model(name="base", ref="/a", fingerprint="x"), Model(name="sft", ref="/b", fingerprint="x")]
    assert len({STAGE.key({"model": model}) for model in models}) == 1


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
