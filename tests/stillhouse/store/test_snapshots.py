"""Snapshots of a folder on S3, for which moto's server answers."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stillhouse.store.remote import RemoteFolder
from stillhouse.store.snapshots import Snapshots

OfMachine = Callable[[str], Snapshots]

pytestmark = pytest.mark.usefixtures("s3")


@pytest.fixture
def of_machine(tmp_path: Path) -> Callable[[str], Snapshots]:
    """Of the folder `training` of a machine: fixed are the files of `steps/*`, and what ends in `.log` is not kept."""

    def make(name: str) -> Snapshots:
        folder = tmp_path / name
        (folder / "steps").mkdir(parents=True, exist_ok=True)
        return Snapshots(
            RemoteFolder("s3://bucket/team"),
            folder,
            "training",
            is_kept=lambda path: path.suffix != ".log",
            is_fixed=lambda path: path.parts[0] == "steps",
        )

    return make


def fill(folder: Path, step: int) -> None:
    (folder / "steps" / str(step)).mkdir()
    (folder / "steps" / str(step) / "weights").write_text(f"weights {step}")
    (folder / "steps" / str(step) / "state").write_text("state")
    with (folder / "rows").open("a") as file:
        file.write(f"{step}\n")
    (folder / "train.log").write_text("much")


def files_of(folder: Path) -> dict[str, str]:
    return {path.relative_to(folder).as_posix(): path.read_text() for path in folder.rglob("*") if path.is_file()}


def objects(s3: Any) -> int:
    return len(s3.client().list_objects_v2(Bucket="bucket").get("Contents", ()))


def test_another_machine_goes_on_from_the_newest_moment(of_machine: OfMachine, tmp_path: Path, s3: Any) -> None:
    there, here = of_machine("there"), of_machine("here")
    assert here.files() == {}
    fill(tmp_path / "there", 1)
    there.take()
    fill(tmp_path / "there", 2)
    (tmp_path / "there" / "steps" / "1" / "weights").unlink()
    (tmp_path / "there" / "steps" / "1" / "state").unlink()
    s3.asked.clear()
    there.take()
    puts = [path for method, path in s3.asked if method == "PUT"]
    assert len(puts) == 3, "the weights, the rows and the manifest: the state is there already"
    assert puts[-1].endswith("manifest.json")
    assert here.restore(here.files())
    kept = files_of(tmp_path / "there")
    del kept["train.log"]
    assert files_of(tmp_path / "here") == kept
    assert objects(s3) == len({*kept.values()}) + 1, "what has served is removed"
    there.remove()
    assert objects(s3) == 0
    assert here.files() == {}


@pytest.mark.parametrize("damage", ["altered", "gone"])
def test_a_damaged_file_is_not_gone_on_from(of_machine: OfMachine, tmp_path: Path, s3: Any, damage: str) -> None:
    there, here = of_machine("there"), of_machine("here")
    fill(tmp_path / "there", 1)
    there.take()
    key = f"team/underway/training/{there.files()['steps/1/weights']}"
    if damage == "gone":
        s3.client().delete_object(Bucket="bucket", Key=key)
    else:
        s3.client().put_object(Bucket="bucket", Key=key, Body=b"Weights 1")
    assert not here.restore(here.files())
    assert not (tmp_path / "here" / "steps" / "1").exists()
