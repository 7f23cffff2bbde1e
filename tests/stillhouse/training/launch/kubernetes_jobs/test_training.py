"""Whole trainings as jobs, whose flow or whose pods are killed."""

import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stillhouse.errors import TrainingError, TrainingKilled
from stillhouse.progress.state import NoProgress
from stillhouse.training.job import TrainJob
from stillhouse.training.launch.cluster import Patience, train_on_cluster
from stillhouse.training.launch.kubernetes_jobs import KubernetesJobs
from stillhouse.training.launch.launch import train

pytestmark = pytest.mark.slow

NewJob = Callable[..., TrainJob]
PATIENCE = Patience(look_s=0.05, settle_s=1.0)
StartFlow = Callable[[TrainJob], subprocess.Popen[bytes]]


def test_a_flow_killed_and_started_again_follows_the_job_it_left(
    cluster_job: NewJob, api: Any, start_flow: StartFlow
) -> None:
    job = cluster_job(num_hosts=2)
    with start_flow(job) as flow:
        flow.kill()
    facts = train_on_cluster(job, NoProgress(), KubernetesJobs(job.runtime.kubernetes), PATIENCE)
    assert facts["resumed_from_step"] is None
    assert (job.output_dir / "model.safetensors").is_file()
    assert api.num_created == 1
    (pods,) = api.pods.values()
    assert len(pods) == 2


def test_a_terminated_flow_deletes_its_job_which_saves_a_checkpoint_first(
    cluster_job: NewJob, sft_job: NewJob, api: Any, start_flow: StartFlow, tmp_path: Path
) -> None:
    job = cluster_job().model_copy(update={"sft": sft_job(tmp_path).sft})
    with start_flow(job) as flow:
        flow.terminate()
        assert flow.wait(120) == 7
    assert api.jobs == {}
    assert "stopped by SIGTERM; a checkpoint was saved" in (job.work_dir / "train.log").read_text() or any(
        "a checkpoint was saved" in path.read_text() for path in job.work_dir.glob("attempts/*/answers-0.jsonl")
    )


def test_a_killed_host_is_worth_another_try_which_continues(cluster_job: NewJob, api: Any) -> None:
    job = cluster_job()

    class Killer:
        def update(self, stage: str, done: int, total: int | None, **facts: Any) -> None:
            if done == 7:
                for pods in api.pods.values():
                    pods[-1].end(signal.SIGKILL)

    jobs = KubernetesJobs(job.runtime.kubernetes)
    with pytest.raises(TrainingKilled, match="was killed by SIGKILL"):
        train_on_cluster(job, Killer(), jobs, PATIENCE)
    assert train_on_cluster(job, NoProgress(), jobs, PATIENCE)["resumed_from_step"] >= 5
    assert api.num_created == 2


def test_an_error_of_the_training_is_the_launchers_error(cluster_job: NewJob, api: Any) -> None:
    job = cluster_job().model_copy(update={"student_ref": "embedded:nobody"})
    with pytest.raises(TrainingError, match=r"^embedded name 'nobody' is unknown.*\(job stillhouse-sft-"):
        train(job, NoProgress())
