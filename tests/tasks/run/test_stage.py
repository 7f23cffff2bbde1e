"""A stage's key, and which stages a flow announces by its config."""

from typing import Any

import pytest
from pydantic import BaseModel

from flows import distill, evaluate_models, generate, score_rows, train_on_policy, train_sft
from stillhouse.config import McpServerConfig, RolloutsConfig, SftConfig, ToolsConfig, parse_config
from stillhouse.types import Artifact, Model
from tasks.cache.results import artifacts_in
from tasks.run.stage import Stage, planned_names

FLOWS: dict[str, Any] = {
    module.__name__: module.STAGES
    for module in (distill, evaluate_models, generate, score_rows, train_on_policy, train_sft)
}
DATASET = ["prompts", "rollouts", "labels", "duplicates", "dataset"]
EVALUATIONS = ["evaluation of base", "evaluation of on_policy", "evaluation of teacher", "comparison"]
ON_POLICY = {"sft": {"enabled": False}, "on_policy": {"enabled": True}}
FROM_ROLLOUTS = {"sft": {"enabled": False}, "on_policy": {"enabled": True, "source": "rollouts"}}
ROWS = {"sft": {"dataset_weight": 0.0, "sources": [{"path": "rows.jsonl"}], "loss": "kl"}}
ARTIFACT = Artifact(uri="/somewhere", fingerprint="f" * 64, num_rows=3, facts={"seconds": 1.0})
STAGE = Stage("dataset", version=1, result="")


@pytest.mark.parametrize(
    ("flow", "settings", "stages"),
    [
        ("generate", {}, DATASET),
        ("generate", {"sft": {"dataset_weight": 0.0, "sources": [{"path": "rows.jsonl"}]}}, DATASET),
        (
            "generate",
            {"dataset": {"judge": {"enabled": True}, "labels": {"measure": ["student_nll"]}}},
            [*DATASET[:3], "judge", "difficulty", *DATASET[3:]],
        ),
        ("train_sft", {"approval": {"enabled": True}}, [*DATASET, "approval", "sft"]),
        ("train_sft", ROWS, ["scores", "sft"]),
        ("score_rows", ROWS, ["scores"]),
        ("score_rows", {"approval": {"enabled": True}}, [*DATASET, "scores"]),
        ("train_on_policy", {}, ["prompts", "on_policy"]),
        ("evaluate_models", {}, ["prompts", "evaluation of base", "evaluation of teacher", "comparison"]),
        ("distill", {"evaluation": {"enabled": False}}, [*DATASET, "sft"]),
        ("distill", ON_POLICY, ["prompts", "on_policy", *EVALUATIONS]),
        ("distill", FROM_ROLLOUTS, ["prompts", "student_rollouts", "on_policy", *EVALUATIONS]),
    ],
)
def test_a_flow_knows_its_stages_by_its_config(flow: str, settings: dict[str, object], stages: list[str]) -> None:
    config = parse_config(settings, origin="test")
    assert planned_names(stage for stage in FLOWS[f"flows.{flow}"] if stage.when(config)) == stages


def test_every_stage_of_any_flow_is_one_of_the_whole_dag() -> None:
    names = [stage.name for stage in distill.STAGES]
    assert len(set(names)) == len(names)
    assert {stage.name for stages in FLOWS.values() for stage in stages} == set(names)


def test_a_key_is_of_stage_version_sections_and_names_of_inputs() -> None:
    assert STAGE.key({}).startswith("dataset/v1-")
    sections = ({"sft": SftConfig(learning_rate=rate)} for rate in (1e-4, 2e-4))
    keys = [STAGE.key(inputs) for inputs in ({"prompts": ARTIFACT}, {"metadata": ARTIFACT}, *sections)]
    keys += [Stage(*named, result="").key({"prompts": ARTIFACT}) for named in (("sft", 1), ("dataset", 2))]
    assert len(set(keys)) == len(keys)


def test_an_artifact_counts_by_its_content_and_a_model_by_its_weights() -> None:
    moved = ARTIFACT.model_copy(update={"uri": "/elsewhere", "facts": {"seconds": 9.0}})
    other = ARTIFACT.model_copy(update={"fingerprint": "0" * 64})
    assert STAGE.key({"a": [ARTIFACT]}) == STAGE.key({"a": [moved]}) != STAGE.key({"a": [other]})
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


def test_sections_have_their_identity_also_where_a_model_holds_them() -> None:
    class Case(BaseModel):
        rollouts: RolloutsConfig
        tools: ToolsConfig

    server = McpServerConfig(name="files", url="http://files.example/mcp")
    case = Case(rollouts=RolloutsConfig(), tools=ToolsConfig(mcp=(server,)))
    identities = {"rollouts": case.rollouts.identity(), "tools": case.tools.identity()}
    assert STAGE.key({"case": case}) == STAGE.key({"case": identities})
