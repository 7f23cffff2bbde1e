import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stillhouse.config import DistillConfig
from stillhouse.tracking.fallback import FALLBACK_FILE, unsent_id
from stillhouse.tracking.tracked_run import TrackedRun
from stillhouse.types import Artifact
from tasks.conversations import log_conversations
from tasks.evaluation import EVALUATION
from tasks.prompts import PROMPTS, PromptSets
from tasks.rollouts import ROLLOUTS, Rollouts
from tasks.run.context import Run


@pytest.fixture
def run_of(make_context: Callable[..., Any], tmp_path: Path) -> Callable[..., Run]:
    """Return a run whose records go to the fallback file, with one shard of rollouts that is evaluated as well."""

    def make(shard: tuple[Artifact, Artifact], **tracking: Any) -> Run:
        config = DistillConfig.model_validate({"tracking": tracking})
        record = TrackedRun("http://127.0.0.1:1", unsent_id(), "distill", tmp_path)
        run = Run("distill", config, make_context(), record)
        trajectories, metadata = shard
        prompts = PromptSets(
            train=trajectories, train_metadata=metadata, held_out=trajectories, held_out_metadata=metadata, facts={}
        )
        rollouts = Rollouts(shards=(trajectories,), metadata=(metadata,), sampling=None, facts={})
        run.record_stage(PROMPTS, prompts, cached=True, seconds=0.0)
        run.record_stage(ROLLOUTS, rollouts, cached=True, seconds=0.0)
        run.record_stage(EVALUATION, trajectories, cached=True, seconds=0.0, label="evaluation of sft")
        return run

    return make


def records(folder: Path, kind: str) -> list[dict[str, Any]]:
    lines = map(json.loads, (folder / FALLBACK_FILE).read_text().splitlines())
    return [line for line in lines if line["kind"] == kind]


def test_each_stage_that_samples_has_traces_with_verdicts_and_each_model_a_table(
    run_of: Callable[..., Run], make_answered: Any, write_shard: Any, tmp_path: Path
) -> None:
    right, wrong = make_answered("2 + 3?"), make_answered("3 + 2?", "It is 6.")
    log_conversations(run_of(write_shard([right, wrong])))
    sent = records(tmp_path, "trace")
    told = [(one["tags"]["stage"], one["question"], one["verdict"], one["expected"]) for one in sent]
    assert told == [
        (stage, question, verdict, "5")
        for stage in ("rollouts", "evaluation of sft")
        for question, verdict in (("2 + 3?", "right"), ("3 + 2?", "wrong"))
    ]
    assert sent[1]["why"].endswith("wrong")
    (table,) = records(tmp_path, "whole table")
    assert table["file"] == "evaluation/sft.json"
    assert list(table["columns"])[:2] == ["question", "answer"], "what MLflow's evaluation view shows at first"
    assert table["columns"]["verdict"] == ["right", "wrong"]
    assert table["columns"]["tokens"] == [4, 4]


def test_what_nothing_verifies_is_unverified(
    run_of: Callable[..., Run], make_answered: Any, write_shard: Any, tmp_path: Path
) -> None:
    log_conversations(run_of(write_shard([make_answered("2 + 3?")], expected=None)))
    assert {trace["verdict"] for trace in records(tmp_path, "trace")} == {"unverified"}


@pytest.mark.parametrize(("traces", "expected"), [(0, 0), (1, 2), (20, 4)])
def test_the_setting_bounds_the_traces_of_a_stage_and_not_the_table(
    traces: int, expected: int, run_of: Callable[..., Run], make_answered: Any, write_shard: Any, tmp_path: Path
) -> None:
    log_conversations(run_of(write_shard([make_answered("2 + 3?"), make_answered("3 + 2?")]), traces=traces))
    assert len(records(tmp_path, "trace")) == expected
    assert len(records(tmp_path, "whole table")[0]["columns"]["question"]) == 2


def test_a_run_that_is_not_tracked_reads_no_trajectories(
    run_of: Callable[..., Run], make_answered: Any, write_shard: Any
) -> None:
    shard = write_shard([make_answered("2 + 3?")])
    run = run_of(shard, enabled=False)
    for file in Path(shard[0].uri).iterdir():
        file.unlink()
    log_conversations(run)
