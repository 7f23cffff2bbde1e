import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from stillhouse.errors import TrainingError
from stillhouse.progress.state import NoProgress
from stillhouse.store import ArtifactStore
from stillhouse.training.job import TrainJob
from stillhouse.training.run_job import run_job
from stillhouse.training.workdir import exclusive, mirrored

Machines = Callable[[str], tuple[Path, ArtifactStore]]


def test_second_process_is_refused(tmp_path: Path):
    with exclusive(tmp_path), pytest.raises(TrainingError, match="another process"), exclusive(tmp_path, wait_s=0.3):
        pass


HOLD = """
import sys, time
from pathlib import Path
from stillhouse.training.workdir import exclusive
with exclusive(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_lock_of_a_killed_process_is_free(tmp_path: Path):
    with subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(TrainingError), exclusive(tmp_path, wait_s=0):
            pass
        holder.kill()
    with exclusive(tmp_path, wait_s=10):
        pass


pytestmark = pytest.mark.usefixtures("s3")


@pytest.fixture
def machine(tmp_path: Path) -> Machines:
    """The work folder and the store as a machine of that name sees them."""

    def make(name: str) -> tuple[Path, ArtifactStore]:
        store = ArtifactStore("s3://bucket/runs", tmp_path / name)
        work_dir = store.root / "training" / "sft-0123"
        work_dir.mkdir(parents=True, exist_ok=True)
        return work_dir, store

    return make


def checkpoint(work_dir: Path, step: int) -> None:
    folder = work_dir / "checkpoints" / f"step-{step:08d}"
    part = folder.with_name(f".{folder.name}.part")
    part.mkdir(parents=True)
    (part / "weights.safetensors").write_text(f"weights {step}")
    with (work_dir / "metrics.jsonl").open("a") as file:
        file.write(f'{{"step": {step}}}\n')
    (work_dir / "train.log").write_text("much")
    part.rename(folder)


def steps(work_dir: Path) -> list[str]:
    return sorted(path.name for path in (work_dir / "checkpoints").glob("step-*"))


def keys(s3: Any) -> list[str]:
    return [entry["Key"] for entry in s3.client().list_objects_v2(Bucket="bucket").get("Contents", ())]


def wait_for(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_checkpoint_is_copied_while_training_goes_on_and_another_machine_continues_from_it(machine, s3):
    there, here = machine("there"), machine("here")
    with mirrored(*there, poll_s=0.02):
        checkpoint(there[0], 4)
        wait_for(lambda: any(key.endswith("manifest.json") for key in keys(s3)))
        # The first machine is lost now; nothing of what it does later is needed.
        with mirrored(*here, poll_s=60):
            assert steps(here[0]) == ["step-00000004"]
            assert (here[0] / "metrics.jsonl").read_text() == '{"step": 4}\n'
            assert not (here[0] / "train.log").exists()


def test_a_training_that_is_told_to_stop_leaves_its_last_checkpoint(machine):
    there, here = machine("there"), machine("here")
    with suppress(KeyboardInterrupt), mirrored(*there, poll_s=600):
        checkpoint(there[0], 2)
        raise KeyboardInterrupt
    with mirrored(*here, poll_s=600):
        assert steps(here[0]) == ["step-00000002"]


def test_a_machine_that_is_further_than_the_copy_keeps_what_it_has(machine):
    there, here = machine("there"), machine("here")
    with mirrored(*there, poll_s=600):
        checkpoint(there[0], 2)
    checkpoint(here[0], 4)
    with mirrored(*here, poll_s=600):
        assert steps(here[0]) == ["step-00000004"]
        assert (here[0] / "metrics.jsonl").read_text() == '{"step": 4}\n'


def test_copies_go_when_the_student_is_safe(machine, s3):
    there = machine("there")
    with mirrored(*there, poll_s=600):
        checkpoint(there[0], 2)
    assert keys(s3) != []
    with mirrored(*there, poll_s=600) as remove_copies:
        checkpoint(there[0], 4)
        remove_copies()
    assert keys(s3) == []


def test_storage_that_fails_while_training_goes_on_is_told_of_and_ends_nothing(
    machine, s3, caplog: pytest.LogCaptureFixture
):
    there = machine("there")
    with mirrored(*there, poll_s=600):
        checkpoint(there[0], 2)
        s3.client().delete_bucket(Bucket="bucket")
    assert "could not be copied" in caplog.text
    s3.client().create_bucket(Bucket="bucket")


def test_a_store_that_is_a_folder_needs_no_copies(tmp_path: Path):
    store = ArtifactStore(tmp_path)
    checkpoint(tmp_path / "training" / "sft-0", 2)
    with mirrored(tmp_path / "training" / "sft-0", store) as remove_copies:
        remove_copies()
    assert steps(tmp_path / "training" / "sft-0") == ["step-00000002"]


class Lost(BaseException):
    """The machine is gone."""


def test_a_training_ends_with_the_same_bits_on_another_machine(machine, new_sft_job, listener):
    def job(name: str) -> TrainJob:
        work_dir, store = machine(name)
        sft = {"num_epochs": 2, "batch_size": 4, "learning_rate": 1e-3, "seed": 3, "checkpoint_every_steps": 2}
        return new_sft_job(store.root, sft, work_dir=work_dir)

    def lose(done: int) -> None:
        if done == 5:
            raise Lost

    run_job(job("undisturbed"), NoProgress())
    listener.action = lose
    with suppress(Lost), mirrored(*machine("there"), poll_s=600):
        run_job(job("there"), listener)
    listener.action, listener.updates = lambda done: None, []
    with mirrored(*machine("here"), poll_s=600):
        assert steps(machine("here")[0])[-1] == "step-00000004"
        run_job(job("here"), listener)
    assert min(done for _, done, *_ in listener.updates if done) >= 4
    weights = [(job(name).output_dir / "model.safetensors").read_bytes() for name in ("undisturbed", "here")]
    assert weights[0] == weights[1]
