"""Finds the files of trajectories that a user names: a run, an artifact's folder, or a file."""

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from stillhouse.errors import ConfigError, InputError
from stillhouse.store.runs import RECENT_FILE, RUN_FILE, RunRecord, find_run, read_run_record, runs_below

TRAJECTORIES_FILE = "trajectories.jsonl"
UNDER_WAY = "under way"
"""Shown as the stage of trajectories whose stage has not ended."""
_DATASET_FILES = ("train.parquet", "validation.parquet", "rejected.parquet")


class TrajectoryFile(NamedTuple):
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
    """Find an existing path of this name, else a run in the store.

    Raises ConfigError if there is neither, or the path is of another kind; InputError if the run left no trajectories.
    """
    path = Path(name)
    record_file = path if path.name == RUN_FILE else path / RUN_FILE
    if record_file.is_file():
        return _of_run(read_run_record(record_file), path, record_file.parent)
    if path.is_file():
        if path.suffix not in {".jsonl", ".parquet"}:
            raise ConfigError(f"{path}: expected a file of trajectories that ends in .jsonl or .parquet")
        return ViewSource(path.stem, str(path), (TrajectoryFile("", path),))
    if path.is_dir():
        files = _files(path, TRAJECTORIES_FILE) or _files(path, *_DATASET_FILES)
        if not files:
            raise ConfigError(
                f"{path}: no trajectories in this folder; expected {TRAJECTORIES_FILE} of a rollouts artifact, "
                f"{', '.join(_DATASET_FILES)} of a dataset, or a report's {RUN_FILE}{runs_below(path)}"
            )
        return ViewSource(path.resolve().name, str(path), tuple(TrajectoryFile("", file) for file in files))
    folder, record = find_run(store_root, name)
    return _of_run(record, store_root, folder)


def _of_run(record: RunRecord, place: Path, folder: Path) -> ViewSource:
    """Return all trajectories of a run: the teacher's, each evaluation's, and the last of a stage under way."""
    folders = [(stage, Path(uri)) for stage, uris in record.artifacts.items() for uri in uris]
    parts = [TrajectoryFile(stage, file) for stage, folder in folders for file in _files(folder, TRAJECTORIES_FILE)]
    parts += [TrajectoryFile(UNDER_WAY, file) for file in _files(folder, RECENT_FILE)]
    if not parts:
        gone = ", ".join(str(folder) for _, folder in folders if not folder.is_dir())
        raise InputError(
            f"run {record.flow} of {record.created_at}: it left no trajectories; stages: "
            f"{', '.join(record.artifacts) or 'none'}{gone and f'; gone: {gone}'}"
        )
    return ViewSource(
        title=f"{record.flow}, {record.prefect_flow_run_name or record.created_at}",
        place=f"{record.created_at[:16].replace('T', ' ')}, {place}",
        parts=tuple(parts),
        labels=tuple(
            file for stage, folder in folders if stage == "dataset" for file in _files(folder, *_DATASET_FILES)
        ),
        metadata=tuple(file for _, folder in folders for file in _files(folder, "metadata.jsonl")),
    )


def _files(folder: Path, *names: str) -> list[Path]:
    """Return those of the files that are in the folder."""
    return [file for name in names if (file := folder / name).is_file()]
