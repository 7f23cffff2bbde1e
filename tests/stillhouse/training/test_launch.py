"""Jobs in real processes, killed for real."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from stillhouse.config import OnPolicyConfig, RuntimeConfig, SftConfig, StudentConfig, ToolsConfig
from stillhouse.errors import TrainingError
from stillhouse.progress import Fact, NoProgress
from stillhouse.serving.models import load_model
from stillhouse.training.job import TrainJob
from stillhouse.training.launch import train
from stillhouse.training.metrics import read_metrics
from stillhouse.training.run import run_job

NewJob = Callable[[Path], TrainJob]


@pytest.fixture
def sft_job(tiny_model: str, full_student: StudentConfig, dataset_folder: Path, runtime: RuntimeConfig) -> NewJob:
    config = SftConfig(
        num_epochs=20, batch_size=4, learning_rate=1e-3, checkpoint_every_steps=5, log_every_steps=3, seed=3
    )

    def make(folder: Path) -> TrainJob:
        return TrainJob(
            method="sft",
            student_ref=tiny_model,
            student=full_student,
            sft=config,
            dataset_folder=dataset_folder,
            work_dir=folder / "work",
            output_dir=folder / "student",
            runtime=runtime,
        )

    return make


@pytest.fixture
def on_policy_job(
    full_student: StudentConfig,
    prompts_file: Path,
    metadata_file: Path,
    calculator: ToolsConfig,
    runtime: RuntimeConfig,
) -> NewJob:
    config = OnPolicyConfig(
        num_steps=8,
        prompts_per_step=4,
        max_tokens=64,
        max_turns=5,
        learning_rate=1e-3,
        schedule="linear",
        checkpoint_every_steps=2,
        log_every_steps=3,
    )

    def make(folder: Path) -> TrainJob:
        return TrainJob(
            method="on_policy",
            student_ref="embedded:student",
            student=full_student,
            on_policy=config,
            prompts_file=prompts_file,
            metadata_file=metadata_file,
            teacher_ref="embedded:teacher",
            tools=calculator,
            work_dir=folder / "work",
            output_dir=folder / "student",
            runtime=runtime,
        )

    return make


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


@pytest.mark.parametrize(("fixture", "kill_at"), [("sft_job", 13), ("on_policy_job", 5)])
def test_training_killed_with_sigkill_ends_with_the_bits_of_an_uninterrupted_one(
    request: pytest.FixtureRequest, tmp_path: Path, fixture: str, kill_at: int
):
    new_job: NewJob = request.getfixturevalue(fixture)
    whole, killed = new_job(tmp_path / "whole"), new_job(tmp_path / "killed")
    facts = run_job(whole, NoProgress())
    run_until_killed(killed, kill_at, signal.SIGKILL)
    assert not killed.output_dir.exists()

    continued = train(killed, NoProgress())

    assert continued["steps"] == facts["steps"]
    assert kill_at - 5 < continued["resumed_from_step"] < facts["steps"]
    assert continued["trained_tokens"] == facts["trained_tokens"]
    weights = [(job.output_dir / "model.safetensors").read_bytes() for job in (whole, killed)]
    assert weights[0] == weights[1]
    rows, expected = (read_metrics(job.work_dir / "metrics.jsonl") for job in (killed, whole))
    assert [row["step"] for row in rows] == [row["step"] for row in expected]
    for row, same in zip(rows, expected, strict=True):
        for metrics in (row["metrics"], same["metrics"]):
            metrics.pop(f"{whole.method}/tokens_per_s", None)
        assert row == same


def test_sigterm_saves_a_checkpoint_and_leaves(sft_job: NewJob, tmp_path: Path):
    job = sft_job(tmp_path)
    message = run_until_killed(job, 7, signal.SIGTERM)
    assert "stopped by SIGTERM; a checkpoint was saved" in message["error"]
    newest = sorted((job.work_dir / "checkpoints").iterdir())[-1]
    assert int(newest.name.removeprefix("step-")) >= 7
    assert not job.output_dir.exists()


def test_launcher_relays_progress_and_the_student_can_be_loaded(sft_job: NewJob, tmp_path: Path):
    seen: list[tuple[str, int, int | None, dict[str, Fact]]] = []

    class Listener:
        def update(self, stage: str, done: int, total: int | None, **facts: Fact) -> None:
            seen.append((stage, done, total, facts))

    job = sft_job(tmp_path)
    facts = train(job, Listener())
    assert [done for _, done, _, _ in seen] == list(range(1, facts["steps"] + 1))
    assert seen[-1][0] == "sft"
    assert "loss" in seen[-1][3]
    assert facts["final"]["sft/loss"] > 0
    load_model(str(job.output_dir), device="cpu")
    record = json.loads((job.output_dir / "student.json").read_text())
    assert record["method"] == "sft"
    assert record["facts"] == facts
    assert (job.output_dir / "metrics.jsonl").read_bytes() == (job.work_dir / "metrics.jsonl").read_bytes()


def test_error_of_the_child_is_the_launchers_error(sft_job: NewJob, tmp_path: Path):
    job = sft_job(tmp_path).model_copy(update={"student_ref": "embedded:nobody"})
    with pytest.raises(TrainingError, match=r"'nobody' is unknown.*train\.log"):
        train(job, NoProgress())


def test_death_of_the_child_is_named_with_the_end_of_its_log(sft_job: NewJob, tmp_path: Path):
    job = sft_job(tmp_path)

    class Killer:
        def update(self, stage: str, done: int, total: int | None, **facts: Fact) -> None:
            for child in psutil.Process().children():
                if "stillhouse.training" in child.cmdline():
                    child.kill()

    with pytest.raises(TrainingError, match=r"signal SIGKILL.*continue from the last checkpoint(?s:.*)INFO"):
        train(job, Killer())


@pytest.mark.gpu
def test_both_methods_train_adapters_on_a_gpu(sft_job: NewJob, on_policy_job: NewJob, tmp_path: Path):
    student = StudentConfig(parameters="lora", lora_rank=4, dtype="bfloat16", max_length=512)
    on_gpu = {"student": student, "runtime": RuntimeConfig(device="cuda")}
    first = sft_job(tmp_path / "sft").model_copy(update={"student_ref": "embedded:student", **on_gpu})
    assert train(first, NoProgress())["final"]["sft/loss"] < 1.0
    second = on_policy_job(tmp_path / "on_policy").model_copy(update={"student_ref": str(first.output_dir), **on_gpu})
    run_until_killed(second, 5, signal.SIGKILL)
    final = train(second, NoProgress())["final"]
    assert final["on_policy/log_ratio_abs_max"] < 0.5


def test_job_without_what_its_method_needs_is_refused(sft_job: NewJob, tmp_path: Path):
    fields = sft_job(tmp_path).model_dump() | {"dataset_folder": None}
    with pytest.raises(ValueError, match="method 'sft' needs dataset_folder"):
        TrainJob.model_validate(fields)


def test_launcher_does_not_import_torch():
    code = "import sys, stillhouse.training.launch; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
