from pathlib import Path

import pytest

from stillhouse.training.loop.checkpoint_folder import checkpoint_path, prune, saved_steps


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for step in (2, 4, 6, 8, 10):
        checkpoint_path(tmp_path, step).mkdir()
        (checkpoint_path(tmp_path, step) / "weights.safetensors").touch()
    return tmp_path


@pytest.mark.parametrize(
    ("keep", "best_step", "left"),
    [(2, None, [10, 8]), (1, None, [10]), (2, 4, [10, 8, 4]), (2, 8, [10, 8]), (1, 3, [10]), (9, 2, [10, 8, 6, 4, 2])],
)
def test_the_newest_and_the_best_are_kept(folder: Path, keep: int, best_step: int | None, left: list[int]):
    prune(folder, saved=10, keep=keep, best_step=best_step)
    assert saved_steps(folder) == left
    assert len(list(folder.iterdir())) == len(left)


def test_later_ones_that_were_damaged_give_way_to_the_one_just_written(folder: Path):
    prune(folder, saved=6, keep=1, best_step=None)
    assert saved_steps(folder) == [6]


def test_steps_are_told_by_number_however_long_their_names(tmp_path: Path):
    for step in (99_999_999, 100_000_000):
        checkpoint_path(tmp_path, step).mkdir()
    assert saved_steps(tmp_path) == [100_000_000, 99_999_999]


def test_what_somebody_else_put_there_is_left_alone(folder: Path):
    (folder / "step-00000010.bak").mkdir()
    (folder / "notes.txt").touch()
    prune(folder, saved=10, keep=1, best_step=None)
    assert {path.name for path in folder.iterdir()} == {"step-00000010", "step-00000010.bak", "notes.txt"}


def test_one_that_cannot_be_deleted_costs_a_warning(folder: Path, caplog: pytest.LogCaptureFixture):
    # Its name leaves no room for the temporary name that it is deleted under; permissions do not stop root.
    stuck = checkpoint_path(folder, 10**239)
    stuck.mkdir()
    prune(folder, saved=10, keep=4, best_step=None)
    assert saved_steps(folder) == [10**239, 10, 8, 6, 4]
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert f"{stuck} is no longer needed and cannot be deleted: " in record.message
