"""One tracked run, addressed by its id in every call.

MLflow's fluent functions are never used: their active run belongs to a thread, so that a metric logged in another
thread opens a phantom run that stays running.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Literal, Self

from stillhouse.config import TrackingConfig
from stillhouse.tracking.client import RunPages, connect, default_uri, experiment_id
from stillhouse.tracking.database import is_database
from stillhouse.tracking.fallback import Answer, Fallback, is_refusal, is_sent, unsent_id
from stillhouse.tracking.lifecycle import continue_run, end_orphaned_runs, end_stale_runs, lock_tag
from stillhouse.tracking.metadata import MAX_TAG_CHARS, PARENT_TAG, flatten, origin_tags, shorten, tracking_key
from stillhouse.tracking.metric_writer import MetricPoint, MetricWriter
from stillhouse.tracking.records import SENDERS
from stillhouse.tracking.registry import StudentVersion, register_students
from stillhouse.types import JsonObject

_logger = logging.getLogger(__name__)

RunStatus = Literal["FINISHED", "FAILED", "KILLED"]


class TrackedRun:
    """A run in MLflow. No method raises: rejected records go to the fallback file, with one warning.

    As a context manager it ends with the block: FINISHED, FAILED after an exception, KILLED after an interrupt. A run
    that is not `owned` is only flushed, since its status belongs to the process that started it.
    """

    def __init__(
        self,
        uri: str | None,
        run_id: str | None,
        name: str,
        fallback_folder: Path,
        *,
        experiment: str | None = None,
        owned: bool = True,
    ) -> None:
        self.uri = uri
        """Tracking URI, for `attach` in another process; None when tracking is off."""
        self.run_id = run_id
        """Id in MLflow, or an `unsent_id` where the run did not start and all goes to the fallback file; None when
        tracking is off."""
        self.name = name
        self.pages = RunPages(uri, run_id, experiment)
        self._experiment = experiment
        self._owned = owned
        self._fallback = None if uri is None else Fallback(fallback_folder, uri)
        self._writer = MetricWriter(self._write_metrics)

    def log_metrics(self, metrics: Mapping[str, float | None], step: int = 0) -> None:
        """Record values at a step, in the background; None values are left out. See `tracking_key`."""
        if self._fallback is None:
            return
        now_ms = time.time_ns() // 1_000_000
        known = {tracking_key(key): float(value) for key, value in metrics.items() if value is not None}
        self._writer.put([MetricPoint(key, value, step, now_ms) for key, value in known.items()])

    def set_tags(self, tags: Mapping[str, str | None]) -> None:
        """Set tags; None values are left out."""
        cut = {key: shorten(value, MAX_TAG_CHARS) for key, value in tags.items() if value is not None}
        self.send("tags", {"tags": cut})

    def log_artifacts(self, folder: Path, subfolder: str | None = None) -> None:
        self.send("artifacts", {"folder": str(folder.absolute()), "subfolder": subfolder})

    def log_artifact(self, file: Path, subfolder: str | None = None) -> None:
        self.send("artifact", {"file": str(file.absolute()), "subfolder": subfolder})

    def log_dataset(self, name: str, uri: str, digest: str, context: str, num_rows: int | None = None) -> None:
        """Record the dataset at `uri`, whose use (`context`) is training, validation or evaluation."""
        use = {"digest": digest, "context": context, "num_rows": num_rows}
        self.send("dataset", {"name": name, "dataset": uri, **use})

    def log_table(self, rows: Sequence[JsonObject], file: str, *, whole: bool = False) -> None:
        """Add rows, or make them the `whole`, of a table in MLflow. `file` ends in `.json`; rows share their keys."""
        if not rows:
            return
        columns = {key: [row.get(key) for row in rows] for key in rows[0]}
        self.send("whole table" if whole else "table", {"file": file, "columns": columns})

    def register(self, name: str, alias: str, students: Sequence[StudentVersion]) -> list[str | None] | None:
        record = {"model": name, "alias": alias, "students": [asdict(student) for student in students]}
        return self.ask("model versions", record, lambda client: register_students(client, name, alias, students))

    def send(self, kind: str, record: JsonObject, *, insist: bool = False) -> None:
        """Send a record of one of the kinds of `SENDERS`; see `ask`."""
        self.ask(kind, record, lambda client: SENDERS[kind](client, str(self.run_id), record), insist=insist)

    def ask(
        self, kind: str, record: JsonObject, send: Callable[[Any], Answer], *, insist: bool = False
    ) -> Answer | None:
        """Return what `send` does with an `MlflowClient`; None if it failed, tracking is off, or the run never started.

        If the call fails, `record` goes to the fallback file. With `insist` it is tried even during an outage.
        """
        uri = self.uri
        if self._fallback is None or uri is None:
            return None
        run = {"run_id": self.run_id, "run": self.name}
        if not is_sent(self.run_id):
            self._fallback.write(run, kind, record)
            return None
        return self._fallback.attempt(lambda: send(connect(uri)), run, kind, record, insist=insist)

    def flush(self) -> None:
        """Wait until all metrics are recorded, in MLflow or the fallback file."""
        self._writer.flush()

    def close(self) -> None:
        """Flush without changing the status, for a run that another process ends."""
        self._writer.close()

    def finish(self, status: RunStatus = "FINISHED") -> None:
        self._writer.close()
        # Even during an outage: an unended run looks alive until the next start.
        self.send("status", {"status": status}, insist=True)

    def suspend(self) -> None:
        """Flush and mark the run as waiting; `start_run` of the same flow run resumes it."""
        self._writer.close()
        self.ask("status", {"status": "SCHEDULED"}, lambda client: client.update_run(self.run_id, "SCHEDULED"))
        self._owned = False

    def end_orphaned(self, is_over: Callable[[str], bool], *, suspended: bool = False) -> None:
        """End runs of the experiment as `end_orphaned_runs`."""
        end = partial(end_orphaned_runs, experiment_id=str(self._experiment), is_over=is_over, suspended=suspended)
        self.ask("orphans", {}, end)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if not self._owned:
            self.close()
        elif kind is None:
            self.finish("FINISHED")
        else:
            self.finish("FAILED" if issubclass(kind, Exception) else "KILLED")

    def _write_metrics(self, points: list[MetricPoint]) -> None:
        """Send the points; where MLflow refuses one, the others arrive."""
        record = {"metrics": [point._asdict() for point in points]}

        def send(client: Any) -> bool:
            try:
                SENDERS["metrics"](client, str(self.run_id), record)
            except Exception as error:
                if len(points) == 1 or not is_refusal(error):
                    raise
                return True
            return False

        if self.ask("metrics", record, send):
            half = len(points) // 2
            self._write_metrics(points[:half])
            self._write_metrics(points[half:])


def start_run(
    tracking: TrackingConfig,
    store_root: Path,
    name: str,
    *,
    parent_run_id: str | None = None,
    continues: str | None = None,
    tags: Mapping[str, str | None] | None = None,
    params: Mapping[str, Any] | None = None,
    started_at: float | None = None,
    shared_url: str | None = None,
) -> TrackedRun:
    """Start a run, which records nothing if tracking is off. Never raises.

    A run without parent first ends runs left open by killed processes of this host, and has the load of this machine.
    A flow run that was suspended or did not finish goes on in its run; a run with parent takes over the run
    `continues`, if MLflow has it.

    The default database, its artifacts and the fallback file are in `store_root`; with a `shared_url` a database's
    artifacts are on that storage. `params`, a nested config, are recorded flat and uncut as `config.yaml`. Work that is
    recorded afterwards gives the second since the epoch at which it `started_at`.
    """
    if not tracking.enabled:
        return TrackedRun(None, None, name, store_root)
    uri = tracking.uri or default_uri(store_root)
    all_tags = origin_tags() | lock_tag(store_root)
    all_tags |= {key: value for key, value in (tags or {}).items() if value is not None}
    if parent_run_id is not None:
        all_tags[PARENT_TAG] = parent_run_id
    cut = {key: shorten(value, MAX_TAG_CHARS) for key, value in all_tags.items()}
    place = shared_url or store_root.absolute().as_uri()
    location = f"{place}/mlartifacts" if is_database(uri) else None
    start_time = None if started_at is None else int(started_at * 1000)

    def create() -> tuple[str, str]:
        client = connect(uri)
        experiment = experiment_id(client, tracking.experiment, location)
        if parent_run_id is None:
            for run_id, state in end_stale_runs(client, experiment, fallback.ended_runs).items():
                _logger.info("MLflow run %s was left open by a process that is gone; set to %s", run_id, state)
        if known := continue_run(client, experiment, cut, continues):
            return experiment, known
        created = client.create_run(experiment, tags=cut, run_name=name, start_time=start_time)
        return experiment, created.info.run_id

    def watch_machine() -> None:
        from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor

        # Its thread ends with the run, and is not waited for: MLflow may be away.
        SystemMetricsMonitor(run_id, resume_logging=True, tracking_uri=uri).start()

    fallback = Fallback(store_root, uri)
    unsent, kind = (continues, "tags") if continues and is_sent(continues) else (unsent_id(), "run")
    record = {"tags": cut, "experiment": tracking.experiment, "location": location, "start_time": start_time}
    created = fallback.attempt(create, {"run_id": unsent, "run": name}, kind, record)
    experiment, run_id = created or (None, unsent)
    run = TrackedRun(uri, run_id, name, store_root, experiment=experiment)
    if created is not None and parent_run_id is None:
        fallback.attempt(watch_machine, {"run_id": run_id, "run": name}, "load of the machine", {})
    if params is not None:
        # Existing params keep their value, as MLflow demands.
        run.send("params", {"params": flatten(params)})
        run.send("config", {"file": "config.yaml", "config": dict(params)})
    return run


def attach(uri: str | None, run_id: str | None, fallback_dir: Path) -> TrackedRun:
    """Attach to a run that another process started and will end, by its `TrackedRun.uri` and `TrackedRun.run_id`."""
    return TrackedRun(uri, run_id, run_id or "attached", fallback_dir, owned=False)
