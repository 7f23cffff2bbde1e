"""What a flow run left in the store, in `run.json` beside its report: how a run is found again by any of its names."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import orjson

from stillhouse.errors import InputError
from stillhouse.store.atomic import write_atomic

RUN_FILE = "run.json"
_MIN_PREFIX = 6
_MAX_NAMED = 8


@dataclass(frozen=True, slots=True)
class RunRecord:
    """A flow run, under way or ended, well or not."""

    flow: str
    created_at: str
    """When it began, in ISO 8601."""
    mlflow_run_id: str | None
    prefect_flow_run_id: str | None
    prefect_flow_run_name: str | None
    artifacts: dict[str, list[str]]
    """Folders of the artifacts it made or took from the cache so far, by stage and in the order of the stages."""


def write_run_record(folder: Path, record: RunRecord) -> None:
    """Writes the record into the folder of the run's report.

    Raises:
        StoreError: it cannot be written.
    """
    write_atomic(folder / RUN_FILE, orjson.dumps(asdict(record), option=orjson.OPT_INDENT_2))


def read_run_record(path: Path) -> RunRecord:
    """The record in a file that `write_run_record` wrote; artifacts are where the store around it has them now.

    Raises:
        InputError: the file cannot be read or holds something else.
    """
    try:
        record = RunRecord(**orjson.loads(path.read_bytes()))
    except (OSError, ValueError, TypeError) as error:
        raise InputError(f"{path}: cannot be read as the record of a run: {error}") from error
    # A report lies in `<root>/reports/<run>/`, an artifact in `<root>/artifacts/<stage>/<key>/`.
    root = path.absolute().parents[2]
    artifacts = {stage: [_folder_now(root, uri) for uri in uris] for stage, uris in record.artifacts.items()}
    return replace(record, artifacts=artifacts)


def _folder_now(root: Path, uri: str) -> str:
    """The folder below `root` that the store had at `uri` before it was moved, or where another machine has it."""
    moved = root.joinpath(*Path(uri).parts[-3:])
    return str(moved) if moved.is_dir() else uri


def find_run(store_root: Path, name: str) -> RunRecord:
    """The newest run called `name`.

    Args:
        store_root: the folder that holds everything runs leave behind.
        name: `latest` (of those that made something), an MLflow run id, a Prefect flow run's id or name, the folder of
            a report, or the start of one of these that tells the run from all others.

    Raises:
        InputError: no run, or more than one, is called so; the message names those there are.
    """
    # Folders are named by the time at which their run began.
    folders = sorted((path.parent for path in store_root.glob(f"reports/*/{RUN_FILE}")), reverse=True)
    records = {folder.name: read_run_record(folder / RUN_FILE) for folder in folders}
    if name == "latest" and records:
        return next((record for record in records.values() if record.artifacts), next(iter(records.values())))
    exact = [record for folder, record in records.items() if name in _names(folder, record)]
    if exact:
        return exact[0]
    started = [
        record
        for folder, record in records.items()
        if len(name) >= _MIN_PREFIX and any(known.startswith(name) for known in _names(folder, record))
    ]
    if len(started) == 1:
        return started[0]
    problem = "several runs whose names start so" if started else "no run of that name"
    raise InputError(
        f"{name!r}: no file or folder, and {problem} in {store_root}/reports. Expected a dataset or rollouts folder, a "
        f".jsonl or .parquet file of trajectories, an MLflow run id, a Prefect flow run's id or name, or `latest`. "
        f"{_known(records)}"
    )


def _names(folder: str, record: RunRecord) -> Iterator[str]:
    yield folder
    for name in (record.mlflow_run_id, record.prefect_flow_run_id, record.prefect_flow_run_name):
        if name is not None:
            yield name


def _known(records: dict[str, RunRecord]) -> str:
    if not records:
        return "No run has begun in this store; name another one with --store"
    newest = [f"{folder} ({record.prefect_flow_run_name})" for folder, record in records.items()][:_MAX_NAMED]
    more = f" and {len(records) - _MAX_NAMED} older ones" if len(records) > _MAX_NAMED else ""
    return f"Runs of this store, the newest first: {', '.join(newest)}{more}"
