import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from stillhouse.config import StudentConfig
from stillhouse.training.job import TrainJob

NewJob = Callable[[Path], TrainJob]
_FLOW = """
import signal, sys
from pathlib import Path
from stillhouse.progress.state import NoProgress
from stillhouse.training.job import TrainJob
from stillhouse.training.launch.launch import train
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
train(TrainJob.model_validate_json(Path(sys.argv[1]).read_bytes()), NoProgress())
"""


@pytest.fixture(scope="module")
def sft_job(new_sft_job) -> NewJob:
    steps = {"num_epochs": 12, "batch_size": 4, "checkpoint_every_steps": 5, "log_every_steps": 3}
    return lambda folder: new_sft_job(folder, {"learning_rate": 1e-3, "seed": 3, **steps})


@pytest.fixture(scope="module")
def lora_job(sft_job) -> NewJob:
    student = StudentConfig(parameters="lora", lora_rank=4, lora_dropout=0.1, dtype="float32", max_length=512)
    return lambda folder: sft_job(folder).model_copy(update={"student": student})


@pytest.fixture(scope="module")
def on_policy_job(new_on_policy_job) -> NewJob:
    settings = {"num_steps": 6, "prompts_per_step": 4, "max_tokens": 64, "max_turns": 5, "learning_rate": 1e-3}
    settings |= {"schedule": "linear", "checkpoint_every_steps": 2, "log_every_steps": 3}
    return lambda folder: new_on_policy_job(folder, settings)


@pytest.fixture(scope="session")
def start_flow() -> Callable[[TrainJob], "subprocess.Popen[bytes]"]:
    """Starts a process that trains, and returns once there is a checkpoint. Told to end, it does so with 7."""

    def start(job: TrainJob) -> subprocess.Popen[bytes]:
        described = job.output_dir.with_suffix(".json")
        described.write_text(job.model_dump_json())
        flow = subprocess.Popen([sys.executable, "-c", _FLOW, str(described)])
        while not any((job.work_dir / "checkpoints").glob("step-*")):
            assert flow.poll() is None
            time.sleep(0.05)
        return flow

    return start
