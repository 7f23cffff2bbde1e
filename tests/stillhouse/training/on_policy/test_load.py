"""Whole trainings whose rollouts are sampled and scored elsewhere."""

import multiprocessing
import shutil
import socket
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from stillhouse.agent.turns import TurnRules
from stillhouse.config import RuntimeConfig, StudentConfig
from stillhouse.progress.state import NoProgress
from stillhouse.training.job import TrainJob
from stillhouse.training.on_policy.batches.batch import read_batch
from stillhouse.training.on_policy.monitoring.shown_trajectories import SHOWN_FOLDER
from stillhouse.training.run_job import run_job
from tests.stillhouse.training.trainings import read_metrics
from tests.stillhouse.training.vllm_stand_in import stand_in_python


def test_servers_sample_ahead_and_score_while_the_student_trains(
    serve: Callable[[str, str], str], new_on_policy_job: Callable[..., TrainJob], tmp_path: Path
) -> None:
    teacher = {"name": "big", "kind": "vllm", "model": "teacher", "base_url": serve("embedded:teacher", "teacher")}
    sizes = {"num_steps": 4, "prompts_per_step": 4, "max_tokens": 24, "max_turns": 3}
    engine = {"engine_url": serve("embedded:student", "student"), "max_staleness": 1}
    settings = {**sizes, **engine, "learning_rate": 1e-3, "log_every_steps": 1, "teachers": [teacher]}
    job = new_on_policy_job(
        tmp_path,
        settings,
        student=StudentConfig(parameters="lora", lora_rank=4, dtype="float32", max_length=512),
        rules=TurnRules(response_schema={"type": "object"}, max_corrections=1),
        teacher_ref=None,
    )
    run_job(job, NoProgress())
    rows = [row["metrics"] for row in read_metrics(tmp_path / "work" / "metrics.jsonl")]
    assert rows[0]["on_policy/staleness"] == 0.0
    assert max(row["on_policy/staleness_max"] for row in rows) == 1.0, "sampled while the student was trained"
    assert rows[0]["on_policy/log_ratio_abs_max"] < 1e-3
    assert all(row["on_policy/teacher_kl/big"] > 0.1 for row in rows)
    assert (tmp_path / "student" / "adapter_model.safetensors").exists()
    shown = "".join(file.read_text() for file in (tmp_path / "work" / SHOWN_FOLDER).glob("*.jsonl"))
    assert "does not meet the required JSON schema" in shown, "the job's rules reach the sampler"


@pytest.mark.slow
@pytest.mark.parametrize("parameters", ["lora", "full"])
def test_a_killed_training_goes_on_with_its_groups_and_a_replay_of_its_batches_has_the_same_bits(
    serve: Callable[[str, str], str], new_on_policy_job: Callable[..., TrainJob], tmp_path: Path, parameters: str
) -> None:
    sizes = {"num_steps": 12, "num_passes": 2, "prompts_per_step": 3, "group_size": 2, "max_tokens": 24, "max_turns": 3}
    engine = {"engine_url": [serve("embedded:student", "student") for _ in range(2)], "max_staleness": 4}
    # Without a checkpoint every batch stays.
    trainer = {"checkpoint_every_steps": 100, "log_every_steps": 1}
    job = new_on_policy_job(
        tmp_path,
        {**sizes, **engine, "learning_rate": 1e-3, "trainer": trainer, "correction": "truncate", "loss_fn": "ppo"},
        student=StudentConfig.model_validate({"parameters": parameters, "dtype": "float32", "max_length": 512}),
    )
    rollouts = tmp_path / "work" / "rollouts"
    killed = multiprocessing.get_context("spawn").Process(target=run_job, args=[job, NoProgress()])
    killed.start()
    while not (rollouts / "batch-00000003.parquet").exists():
        assert killed.is_alive()
        time.sleep(0.01)
    killed.kill()
    killed.join()
    tokens = {path: read_batch(path).token_ids for path in rollouts.glob("*.parquet")}
    groups = {path: path.stat().st_mtime_ns for path in rollouts.rglob("*.json")}
    assert groups, "some have finished that are in no batch"
    run_job(job, NoProgress())
    batches = [read_batch(path) for path in sorted(rollouts.glob("*.parquet"))]
    assert all(np.array_equal(read_batch(path).token_ids, ids) for path, ids in tokens.items())
    assert all(path.stat().st_mtime_ns == when for path, when in groups.items() if path.exists())
    assert [len(set(batch.prompt_id)) for batch in batches] == [3] * 6
    rows = [row["metrics"] for row in read_metrics(tmp_path / "work" / "metrics.jsonl")]
    assert 0.0 < max(row.get("on_policy/staleness_max", 0.0) for row in rows) <= 4.0

    [weights] = (tmp_path / "student").glob("*model.safetensors")
    trained = weights.read_bytes()
    shutil.rmtree(tmp_path / "student")
    for path in (tmp_path / "work").iterdir():
        if path != rollouts:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    run_job(job, NoProgress())
    assert weights.read_bytes() == trained, "of the batches that the first training recorded"


@pytest.mark.slow
@pytest.mark.parametrize("parameters", ["lora", "full"])
def test_a_training_starts_the_server_that_samples_for_it_and_ends_it(
    new_on_policy_job: Callable[..., TrainJob], tmp_path: Path, parameters: str
) -> None:
    python = stand_in_python(tmp_path)
    runtime = RuntimeConfig(store=str(tmp_path / "store"), device="cpu", engine="vllm", vllm_python=python)
    job = new_on_policy_job(
        tmp_path,
        {"num_steps": 4, "num_passes": 2, "prompts_per_step": 4, "max_tokens": 24, "log_every_steps": 1},
        student=StudentConfig.model_validate({"parameters": parameters, "dtype": "float32", "max_length": 512}),
        runtime=runtime,
    )
    run_job(job, NoProgress())
    rows = [row["metrics"] for row in read_metrics(tmp_path / "work" / "metrics.jsonl")]
    assert all(row["on_policy/log_ratio_abs_max"] < 1e-3 for row in rows[::2])
    batch = read_batch(max((tmp_path / "work" / "rollouts").glob("*.parquet")))
    assert batch.old_logprobs is not None, "later updates compare with the student, not with the server"
    [arguments] = (tmp_path / "arguments").read_text().splitlines()
    assert "--logprobs-mode processed_logprobs --dtype float32" in arguments
    assert ("--enable-lora" in arguments) == (parameters == "lora")
    port = int(arguments.split("--port ")[1].split()[0])
    with socket.socket() as free:
        assert free.connect_ex(("127.0.0.1", port)) != 0
    assert not (tmp_path / "work" / "served_weights").exists()
