"""Where the trajectories of what a user names lie: a run, an artifact's folder, or a file."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from stillhouse.errors import InputError
from stillhouse.store.runs import RUN_FILE, RunRecord, find_run, read_run_record

TRAJECTORIES_FILE = "trajectories.jsonl"
_SPLITS = ("train", "validation", "rejected")


class Part(NamedTuple):
    """One file of trajectories."""

    stage: str
    """Who sampled them, where a run has several: `rollouts`, `evaluation of base`; empty elsewhere."""
    path: Path


@dataclass(frozen=True, slots=True)
class Source:
    """Trajectories, and what is known about them elsewhere."""

    title: str
    place: str
    """Where they come from, for a person."""
    parts: tuple[Part, ...]
    labels: tuple[Path, ...] = ()
    """Parquet files of a dataset made of them: whether they are right, kept, and why not."""
    metadata: tuple[Path, ...] = ()
    """Files with the expected answers of their prompts."""


def find_source(name: str, store_root: Path) -> Source:
    """What `name` means: a path that exists, else a run in the store.

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


def _of_file(path: Path) -> Source:
    if path.suffix not in {".jsonl", ".parquet"}:
        raise InputError(f"{path}: expected a file of trajectories that ends in .jsonl or .parquet")
    return Source(path.stem, str(path), (Part("", path),))


def _of_folder(folder: Path) -> Source:
    if (folder / RUN_FILE).is_file():
        return _of_run(read_run_record(folder / RUN_FILE), folder)
    files = tuple(_trajectory_files(folder)) or tuple(_dataset_files(folder))
    if not files:
        raise InputError(
            f"{folder}: no trajectories in this folder; expected {TRAJECTORIES_FILE} of a rollouts artifact, "
            f"{', '.join(f'{split}.parquet' for split in _SPLITS)} of a dataset, or a report's {RUN_FILE}"
        )
    return Source(folder.resolve().name, str(folder), tuple(Part("", file) for file in files))


def _of_run(record: RunRecord, place: Path) -> Source:
    """Every trajectory of a run: those of the teacher, and those of each evaluation."""
    folders = {stage: [Path(uri) for uri in uris] for stage, uris in record.artifacts.items()}
    gone = [str(folder) for stage in folders for folder in folders[stage] if not folder.is_dir()]
    parts = [Part(stage, file) for stage in folders for folder in folders[stage] for file in _trajectory_files(folder)]
    if not parts:
        told = f"; gone: {', '.join(gone)}" if gone else ""
        stages = ", ".join(folders) or "none"
        raise InputError(f"run {record.flow} of {record.created_at}: it left no trajectories; stages: {stages}{told}")
    every = [folder for stage in folders for folder in folders[stage]]
    return Source(
        title=f"{record.flow}, {record.prefect_flow_run_name or record.created_at}",
        place=f"{record.created_at[:16].replace('T', ' ')}, {place}",
        parts=tuple(parts),
        labels=tuple(file for folder in folders.get("dataset", ()) for file in _dataset_files(folder)),
        metadata=tuple(file for folder in every if (file := folder / "metadata.jsonl").is_file()),
    )


def _trajectory_files(folder: Path) -> Iterator[Path]:
    if (file := folder / TRAJECTORIES_FILE).is_file():
        yield file


def _dataset_files(folder: Path) -> Iterator[Path]:
    return (file for split in _SPLITS if (file := folder / f"{split}.parquet").is_file())
