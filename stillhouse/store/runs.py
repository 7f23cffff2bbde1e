"""Records of flow runs, `run.json` beside each report: finds a run by any of its names, also one of another machine."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import orjson

from stillhouse.errors import ConfigError, InputError
from stillhouse.store.artifacts import ArtifactStore
from stillhouse.store.atomic import write_atomic
from stillhouse.store.manifest import MANIFEST, DamagedManifest, parse_manifest
from stillhouse.store.remote import RemoteFolder
from stillhouse.types import JsonObject

RUN_FILE = "run.json"
TRAINED = ("sft", "self_training", "on_policy")
"""Names under which a run records its trainings, and of their students, in the order of the flow."""
RECENT_FILE = "recent.jsonl"
"""The last trajectories of the stage that is under way; gone when the run has ended."""
_MIN_PREFIX = 6
_MAX_NAMED = 8
_MAX_BELOW = 3


@dataclass(frozen=True, slots=True)
class RunRecord:
    """A flow run, running or ended."""

    flow: str
    created_at: str
    """When it began, in ISO 8601."""
    mlflow_run_id: str | None
    prefect_flow_run_id: str | None
    prefect_flow_run_name: str | None
    artifacts: dict[str, list[str]]
    """Folders of its artifacts so far, made or cached, by stage in order."""
    subject: str = ""
    """Digest of what it works on."""
    seconds: dict[str, float] = field(default_factory=dict)
    """That each stage took, without those from the cache."""
    config: JsonObject = field(default_factory=dict)
    """Of the run; empty in records of older versions."""


def write_run_record(folder: Path, record: RunRecord) -> None:
    write_atomic(folder / RUN_FILE, orjson.dumps(asdict(record), option=orjson.OPT_INDENT_2))


def read_run_record(path: Path) -> RunRecord:
    """Return the record in a file, or InputError; artifacts are where the store around it has them now."""
    try:
        record = RunRecord(**orjson.loads(path.read_bytes()))
    except (OSError, ValueError, TypeError) as error:
        raise InputError(f"{path}: cannot be read as the record of a run: {error}") from error
    # A report lies in `<root>/reports/<run>/`, an artifact in `<root>/artifacts/<stage>/<key>/`.
    root = path.absolute().parents[2]

    def folder_now(uri: str) -> str:
        moved = root.joinpath(*Path(uri).parts[-3:])
        return str(moved) if moved.is_dir() else uri

    return replace(record, artifacts={stage: list(map(folder_now, uris)) for stage, uris in record.artifacts.items()})


def find_run(store_root: Path, name: str) -> tuple[Path, RunRecord]:
    """Return the newest run of a store called `name`: the folder of its record and report, and the record.

    A name is `latest` (of those that made something), an MLflow run id, a Prefect flow run's id or name, the folder of
    a report, or the start of one of these that tells the run from all others. Raises ConfigError if no run, or more
    than one, is called so; the message names those there are.
    """
    # Folders are named by the time at which their run began.
    folders = sorted((path.parent for path in store_root.glob(f"reports/*/{RUN_FILE}")), reverse=True)
    found = [(folder, read_run_record(folder / RUN_FILE)) for folder in folders]
    if name == "latest" and found:
        made = (run for run in found if run[1].artifacts or (run[0] / RECENT_FILE).is_file())
        return next(made, found[0])
    matches = []
    for folder, record in found:
        ids = (record.mlflow_run_id, record.prefect_flow_run_id, record.prefect_flow_run_name)
        names = [folder.name, *filter(None, ids)]
        if name in names:
            return folder, record
        if len(name) >= _MIN_PREFIX and any(known.startswith(name) for known in names):
            matches.append((folder, record))
    if len(matches) == 1:
        return matches[0]
    problem = "several runs whose names start so" if matches else "no run of that name"
    raise ConfigError(
        f"{name!r}: no file or folder, and {problem} in {store_root}/reports. Expected a dataset or rollouts folder, a "
        f".jsonl or .parquet file of trajectories, an MLflow run id, a Prefect flow run's id or name, or `latest`. "
        f"{_known(found)}"
    )


def earlier_seconds(store_root: Path, flow: str, subject: str) -> dict[str, float]:
    """Return the seconds that each stage took in the newest run of a flow over the same subject; empty without one."""
    seconds: dict[str, float] = {}
    for file in sorted(store_root.glob(f"reports/*-{flow}-*/{RUN_FILE}")):
        with suppress(InputError):
            record = read_run_record(file)
            seconds |= record.seconds if record.subject == subject else {}
    return seconds


def runs_below(folder: Path) -> str:
    """Name the newest runs below a folder that is none itself, for a message; empty if there are none."""
    records = {path.parent for depth in ("*", "*/*", "*/*/*") for path in folder.glob(f"{depth}/{RUN_FILE}")}
    newest = sorted(records, key=lambda path: path.name, reverse=True)[:_MAX_BELOW]
    return f". Runs below it, the newest first: {', '.join(map(str, newest))}" if newest else ""


def _known(runs: list[tuple[Path, RunRecord]]) -> str:
    if not runs:
        return "No run has begun in this store; name another one with --store"
    newest = [f"{folder.name} ({record.prefect_flow_run_name})" for folder, record in runs[:_MAX_NAMED]]
    more = f" and {len(runs) - _MAX_NAMED} older ones" if len(runs) > _MAX_NAMED else ""
    return f"Runs of this store, the newest first: {', '.join(newest)}{more}"


def fetch_run(location: str, name: str, wants: Callable[[str], bool]) -> Path:
    """Return the local folder of a store, with the run downloaded first if the store is a URL.

    Of the run called `name` (see `find_run`) come the artifacts of the stages that `wants` selects. Nothing is
    downloaded if `name` is a local path. Raises InputError if there is no such run, or what it made is gone from the
    storage.
    """
    store = ArtifactStore(location)
    if store.remote is None:
        return Path(location)
    if Path(name).exists():
        return store.root
    fetch_records(store)
    for stage, uris in find_run(store.root, name)[1].artifacts.items():
        for uri in uris if wants(stage) else ():
            if not store.root.joinpath(*Path(uri).parts[-3:]).is_dir():
                _fetch(store, store.remote, *Path(uri).parts[-2:])
    return store.root


def fetch_records(store: ArtifactStore) -> None:
    """Download the records of runs that are not here yet from the storage that machines share, if there is one."""
    if store.remote is None:
        return
    for path in store.remote.sizes("reports"):
        # Records of ended runs never change.
        if path.endswith(f"/{RUN_FILE}") and not (store.root / "reports" / path).exists():
            write_atomic(store.root / "reports" / path, store.remote.read(f"reports/{path}") or b"")


def _fetch(store: ArtifactStore, remote: RemoteFolder, stage: str, key: str) -> None:
    # A key has several artifacts only if a repeated stage gave other bytes; the run may have used any of them.
    places = [path for path in remote.sizes(f"artifacts/{stage}") if path.startswith(f"{key}-")]
    for path in sorted(path for path in places if path.endswith(f"/{MANIFEST}")):
        manifest = remote.read(f"artifacts/{stage}/{path}") or b""
        with suppress(DamagedManifest):
            if store.obtain(store.here(parse_manifest(manifest).artifact)) is None:
                return
    raise InputError(f"{remote.url}/artifacts/{stage}/{key}-*: gone or damaged; run the same command again to make it")
