"""Jobs in several processes that torchrun starts, against the same jobs in one."""

import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from safetensors.torch import load_file

from stillhouse.config import RuntimeConfig
from stillhouse.errors import ConfigError, TrainingError, TrainingKilled
from stillhouse.progress.state import NoProgress, Progress
from stillhouse.training.job import TrainJob
from stillhouse.training.launch.launch import train
from tests.stillhouse.training.trainings import read_metrics

OF_SPEED = ("tokens_per_s", "mfu", "peak_memory_gib")
ALONE = {"launcher": "inline"}
TOGETHER = {"launcher": "torchrun", "num_processes": 2}


def short(job: TrainJob, **runtime: Any) -> TrainJob:
    """The job with fewer epochs, run as told."""
    assert job.sft is not None
    sft = job.sft.model_copy(update={"num_epochs": 4})
    return job.model_copy(update={"sft": sft, "runtime": RuntimeConfig(device="cpu", num_threads=1, **runtime)})


@pytest.fixture
def at_step(listener) -> Callable[[int, Callable[[], object]], Progress]:
    """A progress that does something once a step is reported."""

    def new(step: int, action: Callable[[], object]) -> Progress:
        listener.action = lambda done: action() if done == step else None
        return listener

    return new


def cancel() -> None:
    raise KeyboardInterrupt


def processes(work_dir: Path) -> list[psutil.Process]:
    """All that run the job in `work_dir`: torchrun and the ranks."""
    file = str(work_dir / "job.json")
    return [process for process in psutil.process_iter(["cmdline"]) if file in " ".join(process.info["cmdline"] or ())]


def ranks(work_dir: Path) -> list[psutil.Process]:
    return [
        process for process in processes(work_dir) if "stillhouse.training" in " ".join(process.info["cmdline"]).split()
    ]


def wait_until_gone(work_dir: Path) -> None:
    deadline = time.monotonic() + 60
    while left := processes(work_dir):
        assert time.monotonic() < deadline, left
        time.sleep(0.05)


def newest_checkpoint(job: TrainJob) -> int:
    return int(sorted((job.work_dir / "checkpoints").iterdir())[-1].name.removeprefix("step-"))


def assert_same_training(job: TrainJob, expected: TrainJob, section: str = "sft", rel: float = 2e-6) -> None:
    """Metrics and weights agree up to rounding."""
    rows, expected_rows = (read_metrics(each.work_dir / "metrics.jsonl") for each in (job, expected))
    assert [row["step"] for row in rows] == [row["step"] for row in expected_rows]
    for row, other in zip(rows, expected_rows, strict=True):
        of_speed = {f"{section}/{name}" for name in OF_SPEED}
        seen, wanted = (
            {name: each["metrics"][name] for name in each["metrics"].keys() - of_speed if not name.endswith("_s")}
            for each in (row, other)
        )
        assert seen == pytest.approx(wanted, rel=rel, abs=1e-5 if rel > 1e-5 else None)
    weights, expected_weights = (load_file(each.output_dir / "model.safetensors") for each in (job, expected))
    torch.testing.assert_close(weights, expected_weights, rtol=0, atol=rel / 2)


@pytest.mark.slow
@pytest.mark.parametrize("compiled", ["off", "on"])
def test_two_processes_train_the_student_that_one_trains(sft_job, tmp_path: Path, compiled: str):
    alone, together = short(sft_job(tmp_path / "1"), **ALONE), short(sft_job(tmp_path / "2"), **TOGETHER)
    assert together.sft is not None
    trainer = together.sft.trainer.model_copy(update={"compile": compiled})
    together = together.model_copy(update={"sft": together.sft.model_copy(update={"trainer": trainer})})
    facts = [train(job, NoProgress()) for job in (alone, together)]
    assert facts[0]["steps"] == facts[1]["steps"] > 10
    assert facts[0]["trained_tokens"] == facts[1]["trained_tokens"]
    assert_same_training(together, alone)
    assert (together.work_dir / "train-rank1.log").read_text()


@pytest.mark.slow
def test_training_broken_off_is_continued_from_a_checkpoint_to_the_same_bits(sft_job, at_step, tmp_path: Path):
    whole, broken_off = (short(sft_job(tmp_path / name), **TOGETHER) for name in ("whole", "broken off"))
    train(whole, NoProgress())

    with pytest.raises(KeyboardInterrupt):
        train(broken_off, at_step(7, cancel))
    assert processes(broken_off.work_dir) == []
    assert newest_checkpoint(broken_off) >= 7
    facts = train(broken_off, NoProgress())
    assert facts["resumed_from_step"] >= 7
    weights = [(job.output_dir / "model.safetensors").read_bytes() for job in (whole, broken_off)]
    assert weights[0] == weights[1]


@pytest.mark.slow
def test_one_process_continues_what_two_began(sft_job, at_step, tmp_path: Path):
    whole, begun = short(sft_job(tmp_path / "whole"), **ALONE), short(sft_job(tmp_path / "begun"), **TOGETHER)
    train(whole, NoProgress())

    with pytest.raises(KeyboardInterrupt):
        train(begun, at_step(7, cancel))
    facts = train(short(begun, **ALONE), NoProgress())
    assert facts["resumed_from_step"] >= 7
    assert_same_training(begun, whole)


def test_no_rank_outlives_a_killed_flow(sft_job, start_flow, tmp_path: Path):
    job = short(sft_job(tmp_path), **TOGETHER)
    with start_flow(job) as flow:
        assert len(ranks(job.work_dir)) == 2
        flow.kill()
    wait_until_gone(job.work_dir)


def second_rank(work_dir: Path) -> psutil.Process:
    return next(process for process in ranks(work_dir) if process.environ()["RANK"] == "1")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("process", "number", "message"),
    [
        (lambda work_dir: second_rank(work_dir).parent(), signal.SIGKILL, "signal SIGKILL"),
        (second_rank, signal.SIGKILL, r"rank 1 ended without a result \(signal SIGKILL.*train\.log"),
        (second_rank, signal.SIGTERM, "stopped by SIGTERM; a checkpoint was saved"),
    ],
    ids=["killed torchrun", "killed rank", "stopped rank"],
)
def test_all_ranks_end_with_one_that_is_killed_or_stopped_and_with_torchrun(
    sft_job, at_step, tmp_path: Path, process: Callable[[Path], psutil.Process], number: int, message: str
):
    job = short(sft_job(tmp_path), **TOGETHER)

    def end_process() -> None:
        assert len(ranks(job.work_dir)) == 2
        process(job.work_dir).send_signal(number)

    with pytest.raises(TrainingKilled, match=message):
        train(job, at_step(7, end_process))
    wait_until_gone(job.work_dir)
    assert number == signal.SIGKILL or newest_checkpoint(job) >= 7


@pytest.mark.slow
def test_hosts_train_together_by_the_command_that_is_logged(sft_job, tmp_path: Path, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(port))
    hosts = {"launcher": "torchrun", "num_hosts": 2}
    alone, together = short(sft_job(tmp_path / "1"), **ALONE), short(sft_job(tmp_path / "2"), **hosts)
    train(alone, NoProgress())

    class Host(logging.Handler):
        """Starts the other host when the command is logged, as a scheduler would."""

        process: subprocess.Popen[bytes]

        def emit(self, record: logging.LogRecord) -> None:
            if "waits for the other hosts; on host 1" in record.getMessage():
                command = record.getMessage().partition(" run: ")[2]
                path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
                self.process = subprocess.Popen(["bash", "-c", command], env={**os.environ, "PATH": path})

    host = Host()
    log = logging.getLogger("stillhouse.training.launch.local")
    log.addHandler(host)
    train(together, NoProgress())
    log.removeHandler(host)
    assert host.process.wait(60) == 0
    assert_same_training(together, alone)


@pytest.fixture
def job(sft_job, tmp_path: Path) -> TrainJob:
    job = sft_job(tmp_path)
    assert job.sft is not None
    sft = job.sft.model_copy(update={"num_epochs": 2, "checkpoint_every_steps": 3})
    return job.model_copy(update={"sft": sft, "runtime": RuntimeConfig(device="cpu", num_threads=1, launcher="inline")})


def settings() -> tuple[object, ...]:
    return (
        torch.get_num_threads(),
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.utils.deterministic.fill_uninitialized_memory,  # type: ignore[attr-defined]
        torch.backends.mkldnn.matmul.fp32_precision,  # type: ignore[attr-defined]
        # Not Python's own generator: threads of clients that earlier tests opened draw from it at any moment.
        torch.get_rng_state().tolist(),
        signal.getsignal(signal.SIGTERM),
    )


def test_torch_is_left_as_it_was_found(job: TrainJob, listener):
    torch.manual_seed(1)
    torch.set_num_threads(2)
    torch.use_deterministic_algorithms(True, warn_only=True)
    # As torch has it: other tests of this process may have trained in it, too.
    torch.utils.deterministic.fill_uninitialized_memory = True  # type: ignore[attr-defined]
    before = settings()
    seen = []

    listener.action = lambda done: seen.append(settings())
    assert train(job, listener)["steps"] > 4
    assert settings() == before
    # While it trained, each of them was another.
    assert [all(during[place] == before[place] for during in seen) for place in (0, 2, 3, 5, 6)] == [False] * 5


@pytest.fixture
def sigterms() -> Iterator[list[int]]:
    """SIGTERM as it arrives at whoever handles it outside the training."""
    seen: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: seen.append(number))
    yield seen
    signal.signal(signal.SIGTERM, before)


@pytest.mark.slow
def test_sigterm_saves_a_checkpoint_and_is_passed_on(job: TrainJob, at_step, sigterms: list[int]):
    def stop() -> None:
        if not sigterms:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(TrainingKilled, match="SIGTERM"):
        train(job, at_step(4, stop))
    assert sigterms == [signal.SIGTERM]
    assert train(job, NoProgress())["resumed_from_step"] == 4


def test_errors_of_users_are_raised_as_they_are_and_others_by_name(job: TrainJob, listener):
    with pytest.raises(ConfigError, match="'embedded:nobody'"):
        train(job.model_copy(update={"student_ref": "embedded:nobody"}), NoProgress())

    def fail(done: int) -> None:
        raise ZeroDivisionError("by zero")

    listener.action = fail
    with pytest.raises(TrainingError, match="ZeroDivisionError: by zero") as raised:
        train(job, listener)
    assert isinstance(raised.value.__cause__, ZeroDivisionError)
