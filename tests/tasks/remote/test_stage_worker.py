"""A stage handed to another flow run: what it refuses, and that nothing of its identity is lost on the way."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flows.distill import STAGES as ALL
from stillhouse.config import (
    DatasetConfig,
    EvaluationConfig,
    OnPolicyConfig,
    RolloutsConfig,
    SftConfig,
    StudentConfig,
    TeacherConfig,
    ToolsConfig,
)
from stillhouse.dataset.acceptance import Acceptance
from stillhouse.dataset.labelling.label import Labelling
from stillhouse.errors import ConfigError, StoreError
from stillhouse.types import Artifact, Model
from tasks.remote.flow_run_stage import StageCall
from tasks.remote.stage_worker import local_inputs, run_stage_call
from tasks.rollouts import ShardTarget
from tasks.run.context import RunContext

MakeContext = Callable[..., RunContext]

STAGES = {stage.name: stage for stage in ALL}
START = Model(name="base", ref="embedded:student", fingerprint="student@1")


def elsewhere(artifact: Artifact) -> str:
    """Return where another machine has it."""
    return str(Path("/elsewhere").joinpath(*Path(artifact.uri).parts[-3:]))


@pytest.fixture
def call_of(make_context: MakeContext) -> Callable[..., dict[str, Any]]:
    """Return a call as it arrives, as JSON."""

    def make(stage: str, inputs: dict[str, Any], **changes: Any) -> dict[str, Any]:
        call = StageCall.of(STAGES[stage], inputs, make_context())
        return {**json.loads(call.model_dump_json()), **changes}

    return make


@pytest.fixture
def sft_inputs() -> dict[str, Any]:
    return {
        "start": START,
        "dataset": None,
        "sources": ["rows@1"],
        "student": StudentConfig(lora_rank=4),
        "sft": SftConfig(learning_rate=1e-5),
        "tools": ToolsConfig(builtin=("calculator",)),
    }


@pytest.fixture
def stored(make_context: MakeContext) -> Artifact:
    def fill(folder: Path) -> tuple[int, dict[str, Any]]:
        (folder / "rows.jsonl").write_text("{}\n")
        return 1, {}

    return make_context().store.write("dataset", "a" * 16, fill)


def inputs_of_stages(stored: Artifact, sft_inputs: dict[str, Any]) -> dict[str, dict[str, Any]]:
    labelling = Labelling.of(DatasetConfig(), tools=ToolsConfig(), student=StudentConfig(), sampling=None)
    acceptance = Acceptance(labelling=labelling, dataset=DatasetConfig(), max_tokens=512)
    return {
        "sft": {**sft_inputs, "dataset": stored},
        "on_policy": {
            "start": START,
            "prompts": stored,
            "metadata": stored,
            "default_teacher": "embedded:teacher",
            "teachers": {"teacher": "teacher@1"},
            "student": StudentConfig(),
            "on_policy": OnPolicyConfig(enabled=True),
            "tools": ToolsConfig(),
            "rewards": None,
            "tool_schemas": "none",
            "system_prompt": "Be brief.",
        },
        "evaluation": {
            "model": START,
            "teacher": None,
            "prompts": stored,
            "metadata": stored,
            "evaluation": EvaluationConfig(num_samples=2),
            "scorer": Model(name="teacher", ref="embedded:teacher", fingerprint="teacher@1"),
            "tools": ToolsConfig(),
            "rewards_sha256": None,
            "tool_schemas": "none",
            "system_prompt": None,
        },
        "rollouts": {
            "shard": stored,
            "model": Model(name="teacher", ref="large", fingerprint="large@http://127.0.0.1/v1"),
            "teacher": TeacherConfig(model="large", base_url="http://127.0.0.1/v1"),
            "rollouts": RolloutsConfig(num_samples=2),
            "tools": ToolsConfig(builtin=("calculator",)),
            "tool_schemas": "none",
            "metadata": stored,
            "wanted": ShardTarget(rows=3, max_candidates=None, per_prompt=1, acceptance=acceptance),
        },
    }


@pytest.mark.parametrize("name", ["sft", "on_policy", "evaluation", "rollouts"])
def test_a_call_keeps_its_inputs_and_key(name: str, call_of: Any, sft_inputs: dict[str, Any], stored: Artifact) -> None:
    stage = STAGES[name]
    inputs = inputs_of_stages(stored, sft_inputs)[name]
    there = local_inputs(StageCall.model_validate(call_of(name, inputs)), stage)
    assert stage.key(there) == stage.key(inputs)
    assert there == inputs


@pytest.mark.parametrize(("name", "model"), [("sft", "start"), ("evaluation", "model")])
def test_a_trained_student_is_found_on_this_machine(
    name: str, model: str, call_of: Any, sft_inputs: dict[str, Any], stored: Artifact
) -> None:
    inputs = inputs_of_stages(stored, sft_inputs)[name]
    call = call_of(name, {**inputs, model: START.model_copy(update={"ref": stored.uri})})
    call["inputs"][model]["ref"] = call["weights"][model]["uri"] = elsewhere(stored)
    assert local_inputs(StageCall.model_validate(call), STAGES[name])[model].ref == stored.uri


def test_what_one_machine_made_for_the_call_another_has_from_the_storage(
    s3: Any, make_context: MakeContext, tmp_path: Path, sft_inputs: dict[str, Any]
) -> None:
    here, there = (
        make_context(store="s3://bucket/team", scratch=str(tmp_path / machine)) for machine in ("here", "there")
    )

    def fill(folder: Path) -> tuple[int, dict[str, Any]]:
        (folder / "prompts.jsonl").write_text("{}\n")
        return 1, {}

    shard = here.store.write("shards", "a" * 16, fill)
    stage = STAGES["rollouts"]
    inputs = {**inputs_of_stages(shard, sft_inputs)["rollouts"], "metadata": None}
    call = json.loads(StageCall.of(stage, inputs, here).model_dump_json())
    call["context"] = json.loads(there.model_dump_json())
    found = local_inputs(StageCall.model_validate(call), stage)["shard"]
    assert Path(found.uri).is_relative_to(tmp_path / "there")
    assert (Path(found.uri) / "prompts.jsonl").read_text() == "{}\n"


def test_a_worker_of_another_version_refuses(call_of: Any, sft_inputs: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="sft/v0-0"):
        run_stage_call(call_of("sft", sft_inputs, key="sft/v0-0"), ALL)


def test_a_stage_that_cannot_be_handed_over_is_refused(call_of: Any, sft_inputs: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"'prompts'.* rollouts, scores, sft"):
        run_stage_call({**call_of("sft", sft_inputs), "stage": "prompts"}, ALL)


def test_an_input_that_no_shared_store_has_is_named(call_of: Any, sft_inputs: dict[str, Any], stored: Artifact) -> None:
    (Path(stored.uri) / "rows.jsonl").unlink()
    with pytest.raises(StoreError, match=r"rows\.jsonl.*runtime\.store"):
        run_stage_call(call_of("sft", {**sft_inputs, "dataset": stored}), ALL)
