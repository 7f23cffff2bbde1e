"""Jobs in real processes, killed for real."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from stillhouse.config import RuntimeConfig, StudentConfig
from stillhouse.errors import TrainingError
from stillhouse.progress.state import Fact, NoProgress
from stillhouse.serving.models import load_model
from stillhouse.training.job import TrainJob
from stillhouse.training.launch.launch import train
from stillhouse.training.run_job import run_job
from stillhouse.types import JsonObject
from tests.stillhouse.training.trainings import read_metrics

NewJob = Callable[[Path], TrainJob]


def run_until_killed(job: TrainJob, at_step: int, number: signal.Signals) -> dict[str, Any]:
    """Runs the module as a person would, and signals it when it reports `at_step`; its last message."""
    job.work_dir.mkdir(parents=True)
    job_file = job.work_dir / "job.json"
    job_file.write_text(job.model_dump_json())
    command = [sys.executable, "-m", "stillhouse.training", str(job_file)]
    message: dict[str, Any] = {}
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        for line in process.stdout:
            message = json.loads(line)
            if message.get("progress", {}).get("done") == at_step:
                process.send_signal(number)
    assert process.returncode != 0
    return message


@dataclass(frozen=True)
class Continued:
    """A training that ran through, and the same one killed with SIGKILL and launched again."""

    whole: TrainJob
    whole_facts: JsonObject
    killed: TrainJob
    kill_at: int
    facts: JsonObject
    updates: list[tuple[str, int, int | None, dict[str, Fact]]]
    """What the launcher relayed after the kill."""


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(("sft_job", 13), id="sft"),
        pytest.param(("on_policy_job", 3), id="on_policy", marks=pytest.mark.slow),
        pytest.param(("lora_job", 13), id="lora with dropout", marks=pytest.mark.slow),
    ],
)
def continued(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Continued:
    fixture, kill_at = request.param
    new_job: NewJob = request.getfixturevalue(fixture)
    folder = tmp_path_factory.mktemp("kill")
    whole, killed = new_job(folder / "whole"), new_job(folder / "killed")
    whole_facts = run_job(whole, NoProgress())
    run_until_killed(killed, kill_at, signal.SIGKILL)
    assert not killed.output_dir.exists()
    updates = []

    class Listener:
        def update(self, stage: str, done: int, total: int | None, **facts: Fact) -> None:
            if "doing" not in facts:
                # The last step is shown once more when the student is saved.
                if updates and done == total == updates[-1][1]:
                    updates.pop()
                updates.append((stage, done, total, facts))

    return Continued(whole, whole_facts, killed, kill_at, train(killed, Listener()), updates)


def test_training_killed_with_sigkill_ends_with_the_bits_of_an_uninterrupted_one(continued: Continued):
    (whole,), (killed,) = (
        [path.read_bytes() for path in job.output_dir.glob("*model.safetensors")]
        for job in (continued.whole, continued.killed)
    )
    assert whole == killed


def test_training_killed_continues_from_its_last_checkpoint(continued: Continued):
    facts, whole = continued.facts, continued.whole_facts
    assert continued.kill_at - 5 < facts["resumed_from_step"] < whole["steps"]
    assert facts["resumed_from_step"] > 0
    for name in ("steps", "trained_tokens", "sampled_tokens"):
        assert facts[name] == whole[name]


def test_metrics_of_a_killed_training_have_no_step_twice_and_none_missing(continued: Continued):
    rows, expected = (read_metrics(job.work_dir / "metrics.jsonl") for job in (continued.killed, continued.whole))
    seconds = ("step_s", "data_s", "train_s", "sample_s", "score_s", "reward_s", "sync_s", "eta_s")
    for row in (*rows, *expected):
        for name in ("tokens_per_s", "mfu", "peak_memory_gib", *seconds):
            row["metrics"].pop(f"{continued.whole.method}/{name}", None)
    assert rows == expected


def test_launcher_relays_the_checkpoint_and_every_step_after_it(continued: Continued):
    first, last = continued.facts["resumed_from_step"], continued.facts["steps"]
    assert [done for _, done, _, _ in continued.updates] == list(range(first, last + 1))
    stage, _, total, facts = continued.updates[-1]
    assert (stage, total) == (continued.killed.method, last)
    headline = {"sft": {"loss", "token_accuracy"}, "on_policy": {"teacher_kl", "reward", "mean_completion_tokens"}}[
        stage
    ]
    assert set(facts) == headline | {"learning_rate", "tokens_per_s", "checkpoint"}
    assert facts["checkpoint"] == last
    assert set(continued.updates[-2][3]) == {*facts, "eta_s"}


def test_finished_student_is_a_model_with_its_record(continued: Continued):
    folder = continued.killed.output_dir
    load_model(str(folder), device="cpu")
    record = json.loads((folder / "student.json").read_text())
    assert record["method"] == continued.killed.method
    assert record["facts"] == continued.facts
    assert (folder / "metrics.jsonl").read_bytes() == (continued.killed.work_dir / "metrics.jsonl").read_bytes()


def test_sigterm_saves_a_checkpoint_and_leaves(sft_job, tmp_path: Path):
    job = sft_job(tmp_path)
    message = run_until_killed(job, 7, signal.SIGTERM)
    assert "stopped by SIGTERM; a checkpoint was saved" in message["error"]
    assert message["killed"]
    newest = sorted((job.work_dir / "checkpoints").iterdir())[-1]
    assert int(newest.name.removeprefix("step-")) >= 7
    assert not job.output_dir.exists()


def test_error_of_the_child_is_the_launchers_error(sft_job, tmp_path: Path):
    job = sft_job(tmp_path).model_copy(update={"student_ref": "embedded:nobody"})
    with pytest.raises(TrainingError, match=r"'embedded:nobody'.*train\.log"):
        train(job, NoProgress())


@pytest.mark.gpu
def test_both_methods_train_adapters_on_a_gpu(sft_job, on_policy_job, tmp_path: Path):
    student = StudentConfig(parameters="lora", lora_rank=4, dtype="bfloat16", max_length=512)
    on_gpu = {"student": student, "runtime": RuntimeConfig(device="cuda")}
    first = sft_job(tmp_path / "sft").model_copy(update={"student_ref": "embedded:student", **on_gpu})
    assert train(first, NoProgress())["final"]["sft/loss"] < 1.0
    second = on_policy_job(tmp_path / "on_policy").model_copy(update={"student_ref": str(first.output_dir), **on_gpu})
    run_until_killed(second, 5, signal.SIGKILL)
    final = train(second, NoProgress())["final"]
    # Two kernels in bfloat16, over every sampled token: 0.3 between those of a CPU.
    assert final["on_policy/log_ratio_abs_max"] < 1.0


def test_job_without_what_its_method_needs_is_refused(sft_job, tmp_path: Path):
    fields = sft_job(tmp_path).model_dump() | {"dataset_folder": None}
    with pytest.raises(ValueError, match="dataset_folder"):
        TrainJob.model_validate(fields)


def test_launcher_does_not_import_torch():
    code = "import sys, stillhouse.training.launch.launch; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
