"""Judge and difficulty as stages of a run: what is at hand is neither asked for nor computed again."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
from prefect import flow

from stillhouse.config import DistillConfig
from stillhouse.dataset.schema import DIFFICULTY_FILE, JUDGE_FILE
from stillhouse.store import ArtifactStore, digest
from stillhouse.store.records import write_jsonl
from stillhouse.testing import ReceivedRequest, Reply, SimulatedProvider, completion
from stillhouse.types import Artifact, PromptMetadata, StopReason, Trajectory, Turn
from tasks.difficulty import measure_difficulty
from tasks.judging import judge
from tasks.rollouts import Rollouts
from tasks.run.context import Run, start_flow
from tasks.sampling import TRAJECTORIES_FILE

KEY_VARIABLE = "STILLHOUSE_TEST_KEY"
NUM_SHARDS, NUM_ROWS = 3, 4


def answer(_request: ReceivedRequest) -> Reply:
    return Reply(completion(orjson.dumps({"explanation": "because", "clarity": 2}).decode()))


def artifact(store: ArtifactStore, stage: str, name: str, rows: list[Any]) -> Artifact:
    return store.write(stage, digest([str(row) for row in rows]), lambda folder: (write_jsonl(folder / name, rows), {}))


def trajectory(number: int) -> Trajectory:
    messages: Any = [{"role": "user", "content": f"question {number}"}, {"role": "assistant", "content": str(number)}]
    turns = [Turn("stop", {}, 0.1, "m")]
    return Trajectory(f"{number:064x}", f"p{number}", 0, messages, [], turns, StopReason.ANSWERED, "m")


def rollouts(store: ArtifactStore) -> Rollouts:
    numbers = [range(shard * NUM_ROWS, (shard + 1) * NUM_ROWS) for shard in range(NUM_SHARDS)]
    shards = [artifact(store, "rollouts", TRAJECTORIES_FILE, list(map(trajectory, part))) for part in numbers]
    metadata = [
        artifact(store, "metadata", "metadata.jsonl", [PromptMetadata(f"p{n}", None, None, "exact", {}) for n in part])
        for part in numbers
    ]
    return Rollouts(shards=tuple(shards), metadata=tuple(metadata), sampling=None, facts={})


@flow
def over_shards(config: DistillConfig) -> tuple[Run, list[list[Artifact] | None]]:
    run = start_flow(config, "over shards")
    sampled = rollouts(run.context.store)
    return run, [stage(sampled, config, run) for stage in (judge, measure_difficulty)]


@pytest.fixture
def config_for(tmp_path: Path) -> Callable[..., DistillConfig]:
    def make(url: str, **runtime: Any) -> DistillConfig:
        rubric = [{"name": "clarity", "question": "Clear?", "best": 4}]
        return DistillConfig(
            dataset={
                "labels": {"measure": ["student_nll"]},
                "judge": {"enabled": True, "rubric": rubric, "model": {"model": "m", "base_url": url}},
            },
            tracking={"enabled": False},
            runtime={
                "store": str(tmp_path), "device": "cpu", "num_threads": 1, "api_key_env": KEY_VARIABLE, **runtime,
            },
        )  # fmt: skip

    return make


def cached(run: Run) -> dict[str, bool]:
    return {outcome.name: outcome.cached for outcome in run.stages}


def test_stages_that_are_off_do_nothing(tmp_path: Path) -> None:
    run, results = over_shards(DistillConfig(tracking={"enabled": False}, runtime={"store": str(tmp_path)}))
    assert results == [None, None]
    assert run.stages == []


def test_a_second_run_asks_nothing_and_a_refreshed_one_takes_answers_from_the_journal(config_for) -> None:
    with SimulatedProvider(answer) as provider:
        run, results = over_shards(config_for(provider.url))
        assert cached(run) == {"judge": False, "difficulty": False}
        for stage, name in zip(results, (JUDGE_FILE, DIFFICULTY_FILE), strict=True):
            assert stage is not None
            assert [shard.num_rows for shard in stage] == [NUM_ROWS] * NUM_SHARDS
            assert all((Path(shard.uri) / name).is_file() for shard in stage)
        assert {outcome.name: outcome.result.facts.get("judged") for outcome in run.stages}["judge"] == 12
        asked = len(provider.ledger)
        assert asked == NUM_SHARDS * NUM_ROWS

        again, same = over_shards(config_for(provider.url))
        assert cached(again) == {"judge": True, "difficulty": True}
        assert same == results

        refreshed, results = over_shards(config_for(provider.url, refresh=["judge"]))
        assert cached(refreshed) == {"judge": False, "difficulty": True}
        assert [[one.fingerprint for one in stage or ()] for stage in results] == [
            [one.fingerprint for one in stage or ()] for stage in same
        ]
        assert len(provider.ledger) == asked
