"""On-policy distillation in processes that torchrun starts, one of which is killed."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stillhouse.config import RuntimeConfig
from stillhouse.errors import TrainingKilled
from stillhouse.progress.state import NoProgress
from stillhouse.training.job import TrainJob
from stillhouse.training.launch.launch import train
from tests.stillhouse.training.launch.test_local import assert_same_training, newest_checkpoint, ranks, wait_until_gone

pytestmark = pytest.mark.slow

STEPS = {
    "num_steps": 8,
    "prompts_per_step": 5,
    "group_size": 2,
    "max_tokens": 12,
    "max_turns": 2,
    "learning_rate": 1e-3,
    "trainer": {"log_every_steps": 1, "checkpoint_every_steps": 2, "microbatch_tokens": 256},
}
EXACT = {"algorithm": "divergence", "divergence": [{"kind": "reverse_kl"}]}


@pytest.fixture
def new_job(new_on_policy_job: Callable[..., TrainJob], tmp_path: Path) -> Callable[..., TrainJob]:
    def make(name: str, num_processes: int, **settings: Any) -> TrainJob:
        launcher = "torchrun" if num_processes > 1 else "subprocess"
        runtime = RuntimeConfig(device="cpu", num_threads=1, launcher=launcher, num_processes=num_processes)
        return new_on_policy_job(tmp_path / name, STEPS | settings, runtime=runtime)

    return make


def weights(job: TrainJob) -> bytes:
    return (job.output_dir / "model.safetensors").read_bytes()


def killing(job: TrainJob, rank: int) -> Callable[[int], None]:
    """What a progress does to kill a rank in the sixth step."""
    killed: list[int] = []

    def act(done: int) -> None:
        if done == 5 and not killed:
            [process] = [one for one in ranks(job.work_dir) if one.environ()["RANK"] == str(rank)]
            os.kill(process.pid, signal.SIGKILL)
            killed.append(process.pid)

    return act


def test_three_processes_train_the_student_that_one_trains(new_job: Callable[..., TrainJob]) -> None:
    alone, together = new_job("1", 1, **EXACT), new_job("3", 3, **EXACT)
    facts = [train(job, NoProgress()) for job in (alone, together)]
    assert [each["num_processes"] for each in facts] == [1, 3]
    assert facts[0]["trained_tokens"] == facts[1]["trained_tokens"]
    assert_same_training(together, alone, section="on_policy", rel=1e-4)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_training_one_of_whose_processes_is_killed_goes_on_to_the_same_bits(
    new_job: Callable[..., TrainJob], listener: Any, rank: int
) -> None:
    whole, killed = new_job("whole", 2), new_job("killed", 2)
    train(whole, NoProgress())
    listener.action = killing(killed, rank)
    with pytest.raises(TrainingKilled, match=f"rank {rank} ended without a result"):
        train(killed, listener)
    wait_until_gone(killed.work_dir)
    assert newest_checkpoint(killed) == 4
    facts = train(killed, NoProgress())
    assert facts["resumed_from_step"] == 4
    assert weights(killed) == weights(whole)


def test_another_number_of_processes_goes_on_from_the_checkpoint(
    new_job: Callable[..., TrainJob], listener: Any
) -> None:
    whole, begun = new_job("whole", 1), new_job("begun", 2)
    train(whole, NoProgress())
    listener.action = killing(begun, 1)
    with pytest.raises(TrainingKilled):
        train(begun, listener)
    goes_on = begun.model_copy(update={"runtime": new_job("begun", 3).runtime})
    assert train(goes_on, NoProgress())["resumed_from_step"] == 4
    assert_same_training(goes_on, whole, section="on_policy", rel=1e-4)
