"""Finds the files of trajectories that a user names: a run, an artifact's folder, or a file."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from stillhouse.errors import InputError
from stillhouse.store.runs import RUN_FILE, RunRecord, find_run, read_run_record

TRAJECTORIES_FILE = "trajectories.jsonl"
_SPLITS = ("train", "validation", "rejected")


class TrajectoryFile(NamedTuple):
    """One file of trajectories."""

    stage: str
    """Stage of a run, such as `rollouts` or `evaluation of base`; else empty."""
    path: Path


@dataclass(frozen=True, slots=True)
class ViewSource:
    """Files of trajectories, and of their labels and metadata."""

    title: str
    place: str
    """Their origin in words."""
    parts: tuple[TrajectoryFile, ...]
    labels: tuple[Path, ...] = ()
    """Parquet files of the dataset made from them, with verdicts and drop reasons."""
    metadata: tuple[Path, ...] = ()
    """Files with the expected answers of their prompts."""


def find_source(name: str, store_root: Path) -> ViewSource:
    """Finds an existing path of this name, else a run in the store.

    Raises:
        InputError: neither, or nothing there holds trajectories.
    """
    path = Path(name)
    if path.is_file() and path.name == RUN_FILE:
        return _of_run(read_run_record(path), path)
    if path.is_file():
        return _of_file(path)
    if path.is_dir():
        return _of_folder(path)
    record = find_run(store_root, name)
    return _of_run(record, store_root)


def _of_file(path: Path) -> ViewSource:
    if path.suffix not in {".jsonl", ".parquet"}:
        raise InputError(f"{path}: expected a file of trajectories that ends in .jsonl or .parquet")
    return ViewSource(path.stem, str(path), (TrajectoryFile("", path),))


def _of_folder(folder: Path) -> ViewSource:
    if (folder / RUN_FILE).is_file():
        return _of_run(read_run_record(folder / RUN_FILE), folder)
    files = tuple(_trajectory_files(folder)) or tuple(_dataset_files(folder))
    if not files:
        raise InputError(
            f"{folder}: no trajectories in this folder; expected {TRAJECTORIES_FILE} of a rollouts artifact, "
            f"{', '.join(f'{split}.parquet' for split in _SPLITS)} of a dataset, or a report's {RUN_FILE}"
        )
    return ViewSource(folder.resolve().name, str(folder), tuple(TrajectoryFile("", file) for file in files))


def _of_run(record: RunRecord, place: Path) -> ViewSource:
    """All trajectories of a run: the teacher's and those of each evaluation."""
    folders = {stage: [Path(uri) for uri in uris] for stage, uris in record.artifacts.items()}
    gone = [str(folder) for stage in folders for folder in folders[stage] if not folder.is_dir()]
    parts = [
        TrajectoryFile(stage, file)
        for stage in folders
        for folder in folders[stage]
        for file in _trajectory_files(folder)
    ]
    if not parts:
        missing = f"; gone: {', '.join(gone)}" if gone else ""
        stages = ", ".join(folders) or "none"
        raise InputError(
            f"run {record.flow} of {record.created_at}: it left no trajectories; stages: {stages}{missing}"
        )
    all_folders = [folder for stage in folders for folder in folders[stage]]
    return ViewSource(
        title=f"{record.flow}, {record.prefect_flow_run_name or record.created_at}",
        place=f"{record.created_at[:16].replace('T', ' ')}, {place}",
        parts=tuple(parts),
        labels=tuple(file for folder in folders.get("dataset", ()) for file in _dataset_files(folder)),
        metadata=tuple(file for folder in all_folders if (file := folder / "metadata.jsonl").is_file()),
    )


def _trajectory_files(folder: Path) -> Iterator[Path]:
    if (file := folder / TRAJECTORIES_FILE).is_file():
        yield file


def _dataset_files(folder: Path) -> Iterator[Path]:
    return (file for split in _SPLITS if (file := folder / f"{split}.parquet").is_file())
