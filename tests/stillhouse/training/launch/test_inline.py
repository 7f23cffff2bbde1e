import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from stillhouse.config import RuntimeConfig
from stillhouse.errors import ConfigError, TrainingError, TrainingKilled
from stillhouse.progress.state import Fact, NoProgress
from stillhouse.training.job import TrainJob
from stillhouse.training.launch.launch import train

NewJob = Callable[[Path], TrainJob]


@pytest.fixture
def job(sft_job: NewJob, tmp_path: Path) -> TrainJob:
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


def test_torch_is_left_as_it_was_found(job: TrainJob):
    torch.set_num_threads(2)
    torch.use_deterministic_algorithms(True, warn_only=True)
    # As torch has it: other tests of this process may have trained in it, too.
    torch.utils.deterministic.fill_uninitialized_memory = True  # type: ignore[attr-defined]
    before = settings()
    seen = []

    class Look:
        def update(self, stage: str, done: int, total: int | None, **facts: Fact) -> None:
            seen.append(settings())

    assert train(job, Look())["steps"] > 4
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


def test_sigterm_saves_a_checkpoint_and_is_passed_on(job: TrainJob, sigterms: list[int]):
    class Stop:
        def update(self, stage: str, done: int, total: int | None, **facts: Fact) -> None:
            if done == 4 and not sigterms:
                os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(TrainingKilled, match="stopped by SIGTERM; a checkpoint was saved"):
        train(job, Stop())
    assert sigterms == [signal.SIGTERM]
    assert train(job, NoProgress())["resumed_from_step"] == 4


def test_errors_of_users_are_raised_as_they_are_and_others_by_name(job: TrainJob, tmp_path: Path):
    with pytest.raises(ConfigError, match="'nobody' is unknown"):
        train(job.model_copy(update={"student_ref": "embedded:nobody"}), NoProgress())

    class Broken:
        def update(self, stage: str, done: int, total: int | None, **facts: Fact) -> None:
            raise ZeroDivisionError("by zero")

    with pytest.raises(TrainingError, match="sft: ZeroDivisionError: by zero") as raised:
        train(job, Broken())
    assert isinstance(raised.value.__cause__, ZeroDivisionError)
