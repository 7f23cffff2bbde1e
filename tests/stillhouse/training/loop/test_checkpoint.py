import json
import os
import random
import resource
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from stillhouse.errors import StoreError
from stillhouse.training.loop.checkpoint import (
    Checkpoint,
    load_newest_checkpoint,
    load_weights,
    save_checkpoint,
)
from stillhouse.training.loop.checkpoint_folder import checkpoint_path, prune, saved_steps
from stillhouse.training.repeatability import random_state

IDENTITY = {"method": "sft", "sft": {"learning_rate": 0.001}}


def checkpoint(step: int, identity: dict[str, Any] = IDENTITY) -> Checkpoint:
    parameter = torch.nn.Parameter(torch.arange(6.0).reshape(2, 3) + step)
    optimizer = torch.optim.AdamW([parameter], fused=True)
    parameter.grad = torch.ones(2, 3)
    optimizer.step()
    return Checkpoint(
        step,
        {"w": parameter.detach()},
        optimizer.state_dict(),
        [random_state(), random_state()],
        identity,
        {"totals": {"seconds": 1.0}, "tracking_run_id": "r"},
    )


def save(folder: Path, saved: Checkpoint, keep: int = 2, best_step: int | None = None) -> Path:
    return save_checkpoint(folder, saved, keep=keep, best_step=best_step)


def newest_step(folder: Path) -> int | None:
    loaded = load_newest_checkpoint(folder, IDENTITY)
    return loaded.step if loaded else None


def damage(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def test_what_is_loaded_is_what_was_saved_and_nothing_of_it_is_a_pickled_object(tmp_path: Path):
    saved = replace(checkpoint(3), average={"w": torch.full((2, 3), 0.5)})
    path = save(tmp_path, saved)
    names = {"weights.safetensors", "average.safetensors", "optimizer.pt", "state.json", "digests.json"}
    assert {file.name for file in path.iterdir()} == names
    torch.load(path / "optimizer.pt", weights_only=True)
    loaded = load_newest_checkpoint(tmp_path, IDENTITY)
    assert loaded is not None
    assert loaded.average is not None
    assert loaded.step == 3
    assert torch.equal(loaded.weights["w"], saved.weights["w"])
    assert torch.equal(loaded.average["w"], torch.full((2, 3), 0.5))
    assert torch.equal(loaded.optimizer["state"][0]["exp_avg"], saved.optimizer["state"][0]["exp_avg"])
    assert loaded.progress == saved.progress
    assert json.dumps(loaded.random) == json.dumps(saved.random)


def test_the_weights_of_a_step_are_its_running_mean_where_one_is_kept(tmp_path: Path):
    save(tmp_path, checkpoint(1))
    save(tmp_path, replace(checkpoint(2), average={"w": torch.full((2, 3), 0.5)}))
    assert torch.equal(load_weights(tmp_path, 1)["w"], checkpoint(1).weights["w"])
    assert torch.equal(load_weights(tmp_path, 2)["w"], torch.full((2, 3), 0.5))


def test_weights_of_a_step_that_is_gone_or_damaged_are_an_error_that_names_it(tmp_path: Path):
    damage(save(tmp_path, checkpoint(1)) / "weights.safetensors")
    for step in (1, 2):
        with pytest.raises(StoreError, match=f"step-0000000{step}"):
            load_weights(tmp_path, step)


@pytest.mark.parametrize("name", ["weights.safetensors", "optimizer.pt", "state.json", "digests.json"])
def test_a_damaged_checkpoint_gives_way_to_the_one_before_and_then_to_the_next(
    tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
):
    save(tmp_path, checkpoint(1))
    damage(save(tmp_path, checkpoint(3)) / name)
    assert newest_step(tmp_path) == 1
    assert "step-00000003 is damaged and ignored" in caplog.text
    save(tmp_path, checkpoint(2), keep=1)
    assert newest_step(tmp_path) == 2


def write_digests(text: str) -> Callable[[Path], object]:
    return lambda path: (path / "digests.json").write_text(text)


@pytest.mark.parametrize(
    "harm",
    [
        *map(write_digests, ("{}", "[]", "null", '{"state.json": "00"}')),
        lambda path: (path / "optimizer.pt").unlink(),
    ],
)
def test_a_checkpoint_whose_files_are_not_those_of_its_digests_is_damaged(tmp_path: Path, harm):
    save(tmp_path, checkpoint(1))
    harm(save(tmp_path, checkpoint(2)))
    assert newest_step(tmp_path) == 1


def test_a_step_that_is_saved_again_replaces_what_was_there(tmp_path: Path):
    damage(save(tmp_path, checkpoint(1)) / "weights.safetensors")
    save(tmp_path, checkpoint(1))
    assert newest_step(tmp_path) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000001"]


def test_no_permission_names_the_checkpoint(tmp_path: Path):
    (tmp_path / "checkpoints").write_text("a file where the folder is to be")
    with pytest.raises(StoreError, match="step-00000002"):
        save(tmp_path / "checkpoints", checkpoint(2))


@pytest.mark.parametrize("largest_file", [1000, 6000])
def test_full_disk_names_path_and_space_and_leaves_the_last_checkpoint(tmp_path: Path, largest_file: int):
    # The first limit stops the weights, the second the optimiser's state.
    save(tmp_path, checkpoint(1))
    big = replace(checkpoint(2), weights={"w": torch.zeros(1000)}, optimizer={"state": {0: torch.zeros(10_000)}})
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, hard))
    try:
        with pytest.raises(StoreError, match=r"2: .*File too large.* 0\.00 GiB \(\d+\.\d\d GiB"):
            save(tmp_path, big)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000001"]
    assert newest_step(tmp_path) == 1


def full_of(step: int) -> Checkpoint:
    """A checkpoint of a megabyte whose every number is `step`."""
    weights = {str(index): torch.full((50_000,), float(step)) for index in range(4)}
    optimizer = {"state": {0: {"exp_avg": torch.full((50_000,), float(step))}}}
    return Checkpoint(step, weights, optimizer, [], IDENTITY, {"step": step}, average=weights)


def save_without_pause(folder: Path, first: int, write_end: int) -> None:
    """Saves one step after the other; says on the pipe `write_end` which are done."""
    for step in range(first, 10**6):
        save(folder, full_of(step), best_step=1)
        os.write(write_end, f"{step} ".encode())


def saved_before_a_kill(folder: Path, first: int, num_saves: int, after_s: float) -> list[int]:
    """The steps that a process saved, from `first` on, before it was killed some time after its `num_saves`-th save."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            save_without_pause(folder, first, write)
        finally:
            os._exit(1)
    os.close(write)
    with os.fdopen(read, "rb", buffering=0) as pipe:
        reported = b""
        while reported.count(b" ") < num_saves:
            reported += pipe.read(1)
        time.sleep(after_s)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        return [int(step) for step in (reported + pipe.readall()).split()]


@pytest.mark.parametrize("num_kills", [8, pytest.param(200, marks=pytest.mark.slow)])
def test_a_process_killed_while_it_saves_leaves_the_old_checkpoint_or_the_new_one(
    tmp_path: Path, num_kills: int, caplog: pytest.LogCaptureFixture
):
    generator = random.Random(0)
    started = time.monotonic()
    save(tmp_path, full_of(1))
    save_s = time.monotonic() - started
    done = 1
    for _ in range(num_kills):
        saved = saved_before_a_kill(tmp_path, done + 1, generator.randrange(3), generator.uniform(0.0, 2 * save_s))
        last_saved = saved[-1] if saved else done
        loaded = load_newest_checkpoint(tmp_path, IDENTITY)
        assert loaded is not None
        done = loaded.step
        assert done in (last_saved, last_saved + 1)
        tensors = [*loaded.weights.values(), loaded.optimizer["state"][0]["exp_avg"]]
        assert all((tensor == float(done)).all() for tensor in tensors)
    assert done > 1
    assert load_weights(tmp_path, 1)["0"][0] == 1.0
    assert "damaged" not in caplog.text
    # What a killed process left over is removed by the next save.
    save(tmp_path, checkpoint(10**6), keep=1, best_step=1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000001", "step-01000000"]


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
