import multiprocessing
from multiprocessing.synchronize import Event
from pathlib import Path

import pytest

from stillhouse.errors import TrainingError
from stillhouse.training.workdir import exclusive


def hold(work_dir: Path, held: Event) -> None:
    with exclusive(work_dir):
        held.set()
        Event.wait(multiprocessing.get_context("spawn").Event(), 60)


@pytest.fixture
def holder(tmp_path: Path):
    context = multiprocessing.get_context("spawn")
    held = context.Event()
    process = context.Process(target=hold, args=(tmp_path, held))
    process.start()
    assert held.wait(60)
    yield process
    process.kill()
    process.join()


def test_second_process_is_refused(tmp_path: Path, holder: multiprocessing.Process):
    with (
        pytest.raises(TrainingError, match="another process is running this training"),
        exclusive(tmp_path, wait_s=0.3),
    ):
        pass


def test_lock_of_a_killed_process_is_free(tmp_path: Path, holder: multiprocessing.Process):
    holder.kill()
    with exclusive(tmp_path, wait_s=10):
        pass
