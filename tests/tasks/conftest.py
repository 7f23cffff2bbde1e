"""A shard of trajectories, as stages that go over them one by one take it."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from stillhouse.config import BudgetConfig, RuntimeConfig, TrackingConfig
from stillhouse.store import digest, prompt_id
from stillhouse.store.records import write_jsonl
from stillhouse.types import Artifact, Message, PromptMetadata, StopReason, Trajectory, Turn
from tasks.run.context import RunContext
from tasks.sampling import TRAJECTORIES_FILE


@pytest.fixture
def make_context(tmp_path: Path) -> Callable[..., RunContext]:
    """Return what a task may know of a run whose store is the test's own folder."""

    def make(*, budget: BudgetConfig = BudgetConfig(), **runtime: Any) -> RunContext:
        return RunContext(
            run_id=str(tmp_path),
            runtime=RuntimeConfig(**{"store": str(tmp_path), "device": "cpu", "num_threads": 1, **runtime}),
            tracking=TrackingConfig(enabled=False),
            budget=budget,
            mlflow_run_id=None,
        )

    return make


@pytest.fixture
def make_answered() -> Callable[..., Trajectory]:
    """Return a trajectory that answered one question, unless told otherwise."""

    def make(question: str, answer: str = "It is 5.", **changes: Any) -> Trajectory:
        prompt: list[Message] = [{"role": "user", "content": question}]
        fields: dict[str, Any] = {
            "rollout_key": digest([question, answer]),
            "prompt_id": prompt_id(prompt, None),
            "sample_index": 0,
            "messages": [*prompt, {"role": "assistant", "content": answer}],
            "tools": [],
            "turns": [Turn("stop", {"prompt_tokens": 9, "completion_tokens": 4}, 0.1, "m")],
            "stop_reason": StopReason.ANSWERED,
            "model": "m",
        }
        return Trajectory(**{**fields, **changes})

    return make


@pytest.fixture
def write_shard(make_context: Callable[..., RunContext]) -> Callable[..., tuple[Artifact, Artifact]]:
    """Return the artifacts of a shard and of its prompts' metadata, under one verifier and expected answer."""

    def write(
        trajectories: Sequence[Trajectory], *, verifier: str = "numeric", expected: str | None = "5"
    ) -> tuple[Artifact, Artifact]:
        store = make_context().store
        prompt_metadata = [PromptMetadata(row.prompt_id, expected, None, verifier, {}) for row in trajectories]

        def artifact(stage: str, name: str, rows: Sequence[Any]) -> Artifact:
            key = digest([str(row) for row in rows])
            return store.write(stage, key, lambda folder: (write_jsonl(folder / name, rows), {}))

        return artifact("rollouts", TRAJECTORIES_FILE, trajectories), artifact(
            "metadata", "metadata.jsonl", prompt_metadata
        )

    return write
