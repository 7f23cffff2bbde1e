"""A stage handed to another flow run: what it refuses, and that nothing of its identity is lost on the way."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

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
from tasks.evaluation import EVALUATION
from tasks.remote.flow_run_stage import StageCall
from tasks.rollouts import ROLLOUTS, ShardTarget
from tasks.run.context import RunContext
from tasks.run_stage import STAGES, local_inputs, run_stage_call
from tasks.training import SFT

START = Model(name="base", ref="embedded:student", fingerprint="student@1")


def elsewhere(artifact: Artifact) -> str:
    """Where another machine has it."""
    return str(Path("/elsewhere").joinpath(*Path(artifact.uri).parts[-3:]))


@pytest.fixture
def call_of(make_context: Callable[..., RunContext]) -> Callable[..., dict[str, Any]]:
    """A call as it arrives, as JSON."""

    def make(stage: str, inputs: dict[str, Any], **changes: Any) -> dict[str, Any]:
        own, _ = STAGES[stage]
        call = StageCall.of(own, inputs, make_context())
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
def stored(make_context: Callable[..., RunContext]) -> Artifact:
    def fill(folder: Path) -> tuple[int, dict[str, Any]]:
        (folder / "rows.jsonl").write_text("{}\n")
        return 1, {}

    return make_context().store.write("dataset", "a" * 16, fill)


def test_a_call_keeps_every_input_and_so_its_key(call_of: Any, sft_inputs: dict[str, Any], stored: Artifact) -> None:
    inputs = {**sft_inputs, "dataset": stored}
    there = local_inputs(StageCall.model_validate(call_of("sft", inputs)))
    assert there == inputs
    assert SFT.key(there) == SFT.key(inputs)


def test_the_other_stage_keeps_its_key_too(call_of: Any, stored: Artifact) -> None:
    stage, _ = STAGES["on_policy"]
    inputs = {
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
    }
    assert stage.key(local_inputs(StageCall.model_validate(call_of("on_policy", inputs)))) == stage.key(inputs)


def test_an_evaluation_keeps_its_key_too_and_its_student_is_found_where_this_machine_has_it(
    call_of: Any, stored: Artifact
) -> None:
    inputs = {
        "model": START.model_copy(update={"name": "sft", "ref": stored.uri}),
        "teacher": None,
        "prompts": stored,
        "metadata": stored,
        "evaluation": EvaluationConfig(num_samples=2),
        "scorer": Model(name="teacher", ref="embedded:teacher", fingerprint="teacher@1"),
        "tools": ToolsConfig(),
        "rewards_sha256": None,
        "tool_schemas": "none",
        "system_prompt": None,
    }
    call = call_of("evaluation", inputs)
    call["inputs"]["model"]["ref"] = call["weights"]["model"]["uri"] = elsewhere(stored)
    there = local_inputs(StageCall.model_validate(call))
    assert there == inputs
    assert EVALUATION.key(there) == EVALUATION.key(inputs)


def test_a_shard_of_rollouts_keeps_its_key_too(call_of: Any, stored: Artifact) -> None:
    labelling = Labelling.of(DatasetConfig(), tools=ToolsConfig(), student="embedded:student", sampling=None)
    acceptance = Acceptance(labelling=labelling, dataset=DatasetConfig(), max_tokens=512)
    inputs = {
        "shard": stored,
        "model": Model(name="teacher", ref="large", fingerprint="large@http://127.0.0.1/v1"),
        "teacher": TeacherConfig(model="large", base_url="http://127.0.0.1/v1"),
        "rollouts": RolloutsConfig(num_samples=2),
        "tools": ToolsConfig(builtin=("calculator",)),
        "tool_schemas": "none",
        "metadata": stored,
        "wanted": ShardTarget(rows=3, max_candidates=None, per_prompt=1, acceptance=acceptance),
    }
    there = local_inputs(StageCall.model_validate(call_of("rollouts", inputs)))
    assert there == inputs
    assert ROLLOUTS.key(there) == ROLLOUTS.key(inputs)


def test_a_student_trained_before_is_found_where_this_machine_has_it(
    call_of: Any, sft_inputs: dict[str, Any], stored: Artifact
) -> None:
    call = call_of("sft", {**sft_inputs, "start": START.model_copy(update={"ref": stored.uri})})
    call["inputs"]["start"]["ref"] = call["weights"]["start"]["uri"] = elsewhere(stored)
    assert local_inputs(StageCall.model_validate(call))["start"].ref == stored.uri


def test_a_worker_of_another_version_refuses(call_of: Any, sft_inputs: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"sft/v0-0 .* different versions of Stillhouse"):
        run_stage_call(call_of("sft", sft_inputs, key="sft/v0-0"))


def test_a_stage_that_cannot_be_handed_over_is_refused(call_of: Any, sft_inputs: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"'prompts' cannot run for another flow run; expected one of sft, on_policy"):
        run_stage_call({**call_of("sft", sft_inputs), "stage": "prompts"})


def test_an_input_that_no_shared_store_holds_is_an_error_that_names_it(
    call_of: Any, sft_inputs: dict[str, Any], stored: Artifact
) -> None:
    (Path(stored.uri) / "rows.jsonl").unlink()
    with pytest.raises(
        StoreError, match=r"rows\.jsonl is gone\. runtime\.store .* a folder that parent and worker share"
    ):
        run_stage_call(call_of("sft", {**sft_inputs, "dataset": stored}))
