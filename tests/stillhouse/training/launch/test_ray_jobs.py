"""Trainings as jobs of a Ray cluster of one node, on this machine."""

import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from stillhouse.config import RuntimeConfig
from stillhouse.errors import ConfigError, TrainingError, TrainingKilled
from stillhouse.progress.state import NoProgress
from stillhouse.training.job import TrainJob
from stillhouse.training.launch.cluster import Timeouts, train_on_cluster
from stillhouse.training.launch.launch import train
from stillhouse.training.launch.ray_jobs import RayJobs

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

OnCluster = Callable[..., TrainJob]


@pytest.fixture(scope="module")
def dashboard() -> Iterator[str]:
    """The address at which the cluster takes jobs."""
    port, dashboard_port, patch = free_port(), free_port(), pytest.MonkeyPatch()
    # Ray's sockets have no room for the path of pytest's folders.
    folder = tempfile.mkdtemp(prefix="ray-")
    # Whoever reaches a cluster could have it run anything.
    patch.setenv("RAY_AUTH_MODE", "token")
    # A process that has talked to a cluster of Ray keeps to that token.
    patch.setenv("RAY_AUTH_TOKEN", os.environ.get("RAY_AUTH_TOKEN") or secrets.token_hex(32))
    binaries = Path(sys.executable).parent
    command = [binaries / "ray", "start", "--head", "--block", "--node-ip-address=127.0.0.1", f"--port={port}"]
    command += ["--dashboard-host=127.0.0.1", f"--dashboard-port={dashboard_port}", "--disable-usage-stats"]
    command += ["--num-cpus=2", "--num-gpus=0", f"--temp-dir={folder}"]
    # Another `python` on the cluster's PATH is not the one that has Stillhouse.
    env = {**os.environ, "PATH": os.defpath}
    with (Path(folder) / "ray.log").open("wb") as log:
        head = subprocess.Popen([*map(str, command)], env=env, stdout=log, stderr=log, start_new_session=True)
    url = f"http://127.0.0.1:{dashboard_port}"
    token = {"Authorization": f"Bearer {os.environ['RAY_AUTH_TOKEN']}"}
    try:
        deadline = time.monotonic() + 300
        while not answers(f"{url}/api/jobs/", token):
            assert head.poll() is None
            assert time.monotonic() < deadline, "the cluster does not take jobs"
            time.sleep(0.5)
        yield url
    finally:
        family = [psutil.Process(head.pid), *psutil.Process(head.pid).children(recursive=True)]
        head.terminate()
        with suppress(subprocess.TimeoutExpired):
            head.wait(60)
        for process in family:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        head.wait()
        shutil.rmtree(folder)
        patch.undo()


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def answers(url: str, headers: dict[str, str]) -> bool:
    try:
        return httpx.get(url, headers=headers, timeout=5).is_success
    except httpx.HTTPError:
        return False


@pytest.fixture
def on_cluster(sft_job, dashboard: str, tmp_path: Path) -> OnCluster:
    """A job of the cluster; `num_epochs` times 5 steps or so."""

    def make(*, num_hosts: int = 1, num_epochs: int = 4) -> TrainJob:
        job = sft_job(tmp_path)
        assert job.sft is not None
        runtime = RuntimeConfig(device="cpu", num_threads=1, launcher="ray", num_hosts=num_hosts, ray_address=dashboard)
        return job.model_copy(update={"runtime": runtime, "sft": job.sft.model_copy(update={"num_epochs": num_epochs})})

    return make


def attempts(job: TrainJob) -> list[Path]:
    return list((job.work_dir / "attempts").iterdir())


def test_a_flow_killed_and_started_again_follows_the_job_it_left(on_cluster, start_flow):
    job = on_cluster(num_hosts=2)
    with start_flow(job) as flow:
        flow.kill()
    facts = train(job, NoProgress())
    assert facts["resumed_from_step"] is None
    assert (job.output_dir / "model.safetensors").is_file()
    assert len(attempts(job)) == 1


def test_a_terminated_flow_ends_its_job_which_saves_a_checkpoint_first(on_cluster, start_flow):
    job = on_cluster(num_epochs=200)
    with start_flow(job) as flow:
        flow.send_signal(signal.SIGTERM)
        assert flow.wait(180) == 7
    (attempt,) = attempts(job)
    messages = "".join(path.read_text() for path in attempt.glob("answers-*.jsonl"))
    assert "a checkpoint was saved" in messages


def test_a_killed_host_is_worth_another_try_which_continues(on_cluster, listener):
    job = on_cluster(num_epochs=20)

    listener.action = lambda done: kill_host(job) if done == 7 else None
    with pytest.raises(TrainingKilled, match="SIGKILL"):
        train_on_cluster(job, listener, RayJobs(job.runtime), Timeouts(poll_s=0.05))
    facts = train(job, NoProgress())
    assert facts["resumed_from_step"] >= 5
    assert len(attempts(job)) == 2


def test_a_killed_host_of_two_that_distil_on_policy_is_worth_another_try_which_continues(
    new_on_policy_job: Callable[..., TrainJob], dashboard: str, listener: Any, tmp_path: Path
) -> None:
    runtime = RuntimeConfig(device="cpu", num_threads=1, launcher="ray", num_hosts=2, ray_address=dashboard)
    steps = {"num_steps": 8, "prompts_per_step": 4, "max_tokens": 12, "max_turns": 2}
    steps["trainer"] = {"checkpoint_every_steps": 2, "log_every_steps": 1}
    job = new_on_policy_job(tmp_path, steps, runtime=runtime)
    listener.action = lambda done: kill_host(job) if done == 5 else None
    with pytest.raises(TrainingKilled, match="SIGKILL"):
        train_on_cluster(job, listener, RayJobs(job.runtime), Timeouts(poll_s=0.05))
    facts = train(job, NoProgress())
    assert facts["resumed_from_step"] == 4
    assert facts["num_processes"] == 2


def kill_host(job: TrainJob) -> None:
    """As the kernel does for want of memory."""
    for process in psutil.process_iter(["cmdline"]):
        command = process.info["cmdline"] or []
        if "stillhouse.training.launch.host" in command and str(job.work_dir) in " ".join(command):
            for one in [*process.children(recursive=True), process]:
                with suppress(psutil.NoSuchProcess):
                    one.kill()


def test_an_error_of_the_training_is_the_launchers_error(on_cluster):
    job = on_cluster().model_copy(update={"student_ref": "embedded:nobody"})
    with pytest.raises(TrainingError, match=r"^model 'embedded:nobody'.*\(job stillhouse-sft-"):
        train(job, NoProgress())


def test_a_cluster_that_does_not_answer_is_told_of_by_its_setting(on_cluster):
    job = on_cluster()
    runtime = job.runtime.model_copy(update={"ray_address": f"http://127.0.0.1:{free_port()}"})
    with pytest.raises(ConfigError, match=r"runtime\.ray_address: .*http://127\.0\.0\.1"):
        train(job.model_copy(update={"runtime": runtime}), NoProgress())
