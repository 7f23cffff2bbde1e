import random
import resource
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from stillhouse.errors import StoreError, TrainingError
from stillhouse.training.checkpoints.checkpoint import (
    Checkpoint,
    load_newest_checkpoint,
    random_state,
    restore_random_state,
    save_checkpoint,
)

IDENTITY = {"method": "sft", "sft": {"learning_rate": 0.001}}


def checkpoint(step: int, identity: dict[str, Any] = IDENTITY) -> Checkpoint:
    parameter = torch.nn.Parameter(torch.arange(6.0).reshape(2, 3) + step)
    optimizer = torch.optim.AdamW([parameter], fused=True)
    parameter.grad = torch.ones(2, 3)
    optimizer.step()
    return Checkpoint(
        step, {"w": parameter.detach()}, optimizer.state_dict(), random_state(), identity, {"totals": {"seconds": 1.0}}
    )


def test_what_is_loaded_is_what_was_saved(tmp_path: Path):
    saved = checkpoint(3)
    save_checkpoint(tmp_path, saved)
    loaded = load_newest_checkpoint(tmp_path, IDENTITY)
    assert loaded is not None
    assert loaded.step == 3
    assert torch.equal(loaded.weights["w"], saved.weights["w"])
    assert torch.equal(loaded.optimizer["state"][0]["exp_avg"], saved.optimizer["state"][0]["exp_avg"])
    assert loaded.progress == {"totals": {"seconds": 1.0}}


def test_every_random_generator_continues(tmp_path: Path):
    def draw() -> list[float]:
        return [torch.rand(1).item(), random.random(), float(np.random.rand())]

    save_checkpoint(tmp_path, checkpoint(1))
    expected = [draw(), draw()]
    loaded = load_newest_checkpoint(tmp_path, IDENTITY)
    assert loaded is not None
    restore_random_state(loaded.random)
    assert [draw(), draw()] == expected


def test_two_newest_are_kept(tmp_path: Path):
    for step in (1, 2, 10):
        save_checkpoint(tmp_path, checkpoint(step))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000002", "step-00000010"]


def test_a_checkpoint_cut_short_by_a_crash_is_never_loaded(tmp_path: Path):
    save_checkpoint(tmp_path, checkpoint(1))
    partial = tmp_path / ".step-00000002.partial"
    partial.mkdir()
    (partial / "weights.safetensors").write_bytes(b"half")
    loaded = load_newest_checkpoint(tmp_path, IDENTITY)
    assert loaded is not None
    assert loaded.step == 1
    save_checkpoint(tmp_path, checkpoint(2))
    assert not partial.exists()


def test_a_damaged_checkpoint_gives_way_to_the_one_before(tmp_path: Path):
    save_checkpoint(tmp_path, checkpoint(1))
    newest = save_checkpoint(tmp_path, checkpoint(2))
    content = bytearray((newest / "weights.safetensors").read_bytes())
    content[-1] ^= 1
    (newest / "weights.safetensors").write_bytes(content)
    loaded = load_newest_checkpoint(tmp_path, IDENTITY)
    assert loaded is not None
    assert loaded.step == 1


def test_another_config_is_refused_with_its_differences(tmp_path: Path):
    save_checkpoint(tmp_path, checkpoint(1))
    other = {"method": "sft", "sft": {"learning_rate": 0.002}}
    with pytest.raises(TrainingError, match=r"sft\.learning_rate: 0\.001 in the checkpoint, 0\.002 now"):
        load_newest_checkpoint(tmp_path, other)


def test_no_permission_names_the_checkpoint_and_leaves_the_last_one(tmp_path: Path):
    folder = tmp_path / "checkpoints"
    save_checkpoint(folder, checkpoint(1))
    (folder / ".step-00000002.partial").write_text("a file where the folder is to be")
    with pytest.raises(StoreError, match="step-00000002: cannot be written"):
        save_checkpoint(folder, checkpoint(2))
    loaded = load_newest_checkpoint(folder, IDENTITY)
    assert loaded is not None
    assert loaded.step == 1


@pytest.mark.parametrize("largest_file", [1000, 6000])
def test_full_disk_is_reported_and_leaves_the_last_checkpoint(tmp_path: Path, largest_file: int):
    # The first limit stops the weights, the second the optimiser's state.
    save_checkpoint(tmp_path, checkpoint(1))
    big = replace(checkpoint(2), weights={"w": torch.zeros(1000)}, optimizer={"state": {0: torch.zeros(10_000)}})
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, hard))
    try:
        with pytest.raises(StoreError, match="step-00000002: cannot be written"):
            save_checkpoint(tmp_path, big)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000001"]
