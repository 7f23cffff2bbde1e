"""One tracked run, addressed by its id in every call.

MLflow's fluent functions are never used: their active run belongs to a thread, so that a metric logged in another
thread opens a phantom run that stays running.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self
from urllib.parse import quote

from stillhouse.config import TrackingConfig
from stillhouse.tracking.client import connect, default_uri, experiment_id, is_database
from stillhouse.tracking.dataset_input import dataset_input
from stillhouse.tracking.fallback import Answer, Fallback, outage_of
from stillhouse.tracking.metric_writer import MetricPoint, MetricWriter
from stillhouse.tracking.origin import origin_tags
from stillhouse.tracking.params import MAX_TAG_CHARS, flatten, shorten
from stillhouse.tracking.registry import StudentVersion, register_students
from stillhouse.tracking.stale import end_orphaned_runs, end_stale_runs
from stillhouse.tracking.suspended import end_suspended_runs, resume_suspended_run
from stillhouse.types import JsonObject

_logger = logging.getLogger(__name__)

FALLBACK_FILE = "tracking-fallback.jsonl"
_MAX_PARAMS_PER_CALL = 100

RunStatus = Literal["FINISHED", "FAILED", "KILLED"]


class TrackedRun:
    """A run in MLflow. No method raises: what MLflow does not take goes to the fallback file, with one warning.

    As a context manager it ends when the block does: FINISHED, FAILED after an exception, KILLED after an interrupt. A
    run that was attached to is only flushed, since its status belongs to the process that started it.

    Args:
        uri: tracking URI; None makes a run that records nothing.
        run_id: id in MLflow; None when the run could not be started, so that everything goes to the fallback file.
        name: tells the run in the fallback file.
        fallback_folder: where the fallback file is.
        experiment: the experiment's id, where known.
        owned: whether leaving the `with` block ends the run.
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
        """Id in MLflow; None when tracking is off or the run could not be started."""
        self.name = name
        self._experiment = experiment
        self._owned = owned
        self._fallback = None if uri is None else Fallback(fallback_folder / FALLBACK_FILE, uri, outage_of(uri))
        self._writer = MetricWriter(self._write_metrics)

    @property
    def url(self) -> str | None:
        """The run's page, or the server's where the experiment is not known (an attached run); None without a run.

        For a database it answers once `ui_command` runs.
        """
        if self.uri is None or self.run_id is None:
            return None
        if self._experiment is None:
            return _server(self.uri)
        return f"{_server(self.uri)}/#/experiments/{self._experiment}/runs/{self.run_id}"

    def url_of(self, file: str) -> str | None:
        """The page of one of the run's files, by its path among the artifacts; None where `url` is no run's page."""
        return None if self.url is None or self._experiment is None else f"{self.url}/artifacts/{file}"

    @property
    def ui_command(self) -> str | None:
        """What to type to see the pages of a database; None for a server, which shows its own."""
        if self.uri is None or not is_database(self.uri):
            return None
        # Without the setting the server starts eight job processes that only its GenAI evaluations use.
        return f"MLFLOW_SERVER_ENABLE_JOB_EXECUTION=false mlflow ui --backend-store-uri {self.uri}"

    def log_params(self, config: Mapping[str, Any]) -> None:
        """Records a nested config by dotted key. A param that the run has keeps its first value, as MLflow demands."""
        params = flatten(config)

        def send(client: Any) -> None:
            from mlflow.entities import Param

            known = client.get_run(self.run_id).data.params
            changed = sorted(key for key in params if known.get(key, params[key]) != params[key])
            if changed:
                _logger.warning("MLflow run %s keeps its first values of %s", self.run_id, ", ".join(changed))
            new = [Param(key, value) for key, value in params.items() if key not in known]
            for start in range(0, len(new), _MAX_PARAMS_PER_CALL):
                client.log_batch(self.run_id, params=new[start : start + _MAX_PARAMS_PER_CALL])

        self.ask("params", {"params": params}, send)

    def log_metrics(self, metrics: Mapping[str, float | None], step: int = 0) -> None:
        """Records values at a step, in the background; None values are left out."""
        if self._fallback is None:
            return
        now_ms = time.time_ns() // 1_000_000
        self._writer.put(
            [MetricPoint(key, float(value), step, now_ms) for key, value in metrics.items() if value is not None]
        )

    def set_tags(self, tags: Mapping[str, str | None]) -> None:
        """Sets tags; None values are left out."""
        cut = {key: shorten(value, MAX_TAG_CHARS) for key, value in tags.items() if value is not None}

        def send(client: Any) -> None:
            from mlflow.entities import RunTag

            client.log_batch(self.run_id, tags=[RunTag(key, value) for key, value in cut.items()])

        self.ask("tags", {"tags": cut}, send)

    def log_config(self, config: JsonObject, file: str = "config.yaml") -> None:
        """Records a whole config as a file, where no value is cut; its ending says whether as YAML or JSON."""
        self.ask("config", {"file": file}, lambda client: client.log_dict(self.run_id, config, file))

    def log_artifacts(self, folder: Path, subfolder: str | None = None) -> None:
        """Copies the files of `folder` to the run's artifacts."""
        record = {"folder": str(folder), "subfolder": subfolder}
        self.ask("artifacts", record, lambda client: client.log_artifacts(self.run_id, str(folder), subfolder))

    def log_artifact(self, file: Path, subfolder: str | None = None) -> None:
        """Copies one file to the run's artifacts."""
        record = {"file": str(file), "subfolder": subfolder}
        self.ask("artifact", record, lambda client: client.log_artifact(self.run_id, str(file), subfolder))

    def log_dataset(self, name: str, uri: str, digest: str, context: str, num_rows: int | None = None) -> None:
        """Records that the run used a dataset.

        Args:
            name: what MLflow shows.
            uri: where it lies.
            digest: its fingerprint; MLflow keeps 36 characters.
            context: what for: training, validation, evaluation.
            num_rows: shown beside it; None when rows mean nothing.
        """
        record = {"name": name, "dataset": uri, "digest": digest, "context": context, "num_rows": num_rows}
        self.ask(
            "dataset",
            record,
            lambda client: client.log_inputs(self.run_id, [dataset_input(name, uri, digest, context, num_rows)]),
        )

    def log_table(self, rows: Sequence[JsonObject], file: str) -> None:
        """Records rows as a table that MLflow's page shows. `file` ends in `.json`; rows share their keys."""
        if not rows:
            return
        columns = {key: [row.get(key) for row in rows] for key in rows[0]}
        record = {"file": file, "num_rows": len(rows)}
        self.ask("table", record, lambda client: client.log_table(self.run_id, columns, file))

    def register(self, name: str, alias: str, students: Sequence[StudentVersion]) -> list[str | None] | None:
        """What `register_students` gives; None where MLflow did not take it."""
        record = {"model": name, "alias": alias, "students": [asdict(student) for student in students]}
        return self.ask("model versions", record, lambda client: register_students(client, name, alias, students))

    def ask(
        self, kind: str, record: JsonObject, send: Callable[[Any], Answer], *, insist: bool = False
    ) -> Answer | None:
        """What `send` returns of MLflow; None when it failed, when tracking is off, and when the run never started.

        Args:
            kind: of what is sent, for the warning and the fallback file.
            record: what goes to the fallback file where MLflow does not take it.
            send: takes an `MlflowClient`.
            insist: try even during an outage.
        """
        uri = self.uri
        if self._fallback is None or uri is None:
            return None
        run = {"run_id": self.run_id, "run": self.name}
        if self.run_id is None:
            self._fallback.write(run, kind, record)
            return None
        return self._fallback.attempt(lambda: send(connect(uri)), run, kind, record, insist=insist)

    def model_page(self, name: str, version: str) -> str | None:
        """The page of a registered model's version; None without tracking."""
        return None if self.uri is None else f"{_server(self.uri)}/#/models/{quote(name)}/versions/{version}"

    def flush(self) -> None:
        """Returns when all metrics logged so far are recorded, in MLflow or in the fallback file."""
        self._writer.flush()

    def close(self) -> None:
        """Flushes and leaves the run's status alone: for a run that another process ends."""
        self._writer.close()

    def finish(self, status: RunStatus = "FINISHED") -> None:
        """Flushes and ends the run."""
        self._writer.close()
        # Tried even during an outage: a run that is not ended looks alive until the next start.
        self.ask(
            "status",
            {"status": status},
            lambda client: client.set_terminated(self.run_id, status),
            insist=True,
        )

    def suspend(self) -> None:
        """Flushes and marks the run as waiting; `start_run` for the same flow run goes on with it."""
        self._writer.close()
        self.ask("status", {"status": "SCHEDULED"}, lambda client: client.update_run(self.run_id, "SCHEDULED"))
        self._owned = False

    def end_suspended(self, is_over: Callable[[str], bool]) -> None:
        """Ends the experiment's suspended runs whose flow run, by its id, does not go on."""
        self.ask("status", {}, lambda client: end_suspended_runs(client, str(self._experiment), is_over))

    def end_orphaned(self, has_ended: Callable[[str], bool]) -> None:
        """Ends the experiment's runs of other hosts that are running although their flow run, by its id, has ended."""
        self.ask("orphans", {}, lambda client: end_orphaned_runs(client, str(self._experiment), has_ended))

    def resume(self) -> None:
        """Marks the run as this process's and running, after the process that began it was killed."""

        def send(client: Any) -> None:
            from mlflow.entities import RunTag

            # Before the status: a running run with the tags of a process that is gone looks as if it was left open.
            client.log_batch(self.run_id, tags=[RunTag(key, value) for key, value in origin_tags().items()])
            client.update_run(self.run_id, "RUNNING")

        self.ask("status", {"status": "RUNNING"}, send)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._owned:
            self.close()
        elif kind is None:
            self.finish("FINISHED")
        else:
            self.finish("FAILED" if issubclass(kind, Exception) else "KILLED")

    def _write_metrics(self, points: list[MetricPoint]) -> None:
        def send(client: Any) -> None:
            from mlflow.entities import Metric

            client.log_batch(self.run_id, metrics=[Metric(p.key, p.value, p.timestamp_ms, p.step) for p in points])

        self.ask("metrics", {"metrics": [point._asdict() for point in points]}, send)


def _server(uri: str) -> str:
    """Where the pages are; for a database, where its server puts them unless told otherwise."""
    return "http://127.0.0.1:5000" if is_database(uri) else uri.rstrip("/")


def start_run(
    tracking: TrackingConfig,
    store_root: Path,
    name: str,
    *,
    parent_run_id: str | None = None,
    tags: Mapping[str, str | None] | None = None,
    params: Mapping[str, Any] | None = None,
    started_at: float | None = None,
    shared_url: str | None = None,
) -> TrackedRun:
    """A new run, or one that records nothing when tracking is off. Never raises.

    A run without parent first ends the runs that killed processes of this host left open. Where its flow run was
    suspended, it is the run that was suspended with it.

    Args:
        tracking: its section of the config.
        store_root: holds the default database, its artifacts and the fallback file.
        name: what MLflow shows.
        parent_run_id: nests the run below another.
        tags: tags beside those that name user, commit, host and process.
        params: a nested config; recorded flat, and whole as `config.yaml`.
        started_at: seconds since the epoch, for work recorded once it is done; None means now.
        shared_url: object storage that takes the artifacts of a database's runs; None leaves them in `store_root`.
    """
    if not tracking.enabled:
        return TrackedRun(None, None, name, store_root)
    uri = tracking.uri or default_uri(store_root)
    all_tags = {**origin_tags(), **{key: value for key, value in (tags or {}).items() if value is not None}}
    if parent_run_id is not None:
        all_tags["mlflow.parentRunId"] = parent_run_id
    cut = {key: shorten(value, MAX_TAG_CHARS) for key, value in all_tags.items()}
    place = shared_url or store_root.absolute().as_uri()
    location = f"{place}/mlartifacts" if is_database(uri) else None

    def create() -> tuple[str, str]:
        client = connect(uri)
        experiment = experiment_id(client, tracking.experiment, location)
        if parent_run_id is None:
            for run_id, state in end_stale_runs(client, experiment, fallback.ended_runs).items():
                _logger.info("MLflow run %s was left open by a process that is gone; set to %s", run_id, state)
            if suspended := resume_suspended_run(client, experiment, cut):
                return experiment, suspended
        start_time = None if started_at is None else int(started_at * 1000)
        created = client.create_run(experiment, tags=cut, run_name=name, start_time=start_time)
        return experiment, created.info.run_id

    fallback = Fallback(store_root / FALLBACK_FILE, uri, outage_of(uri))
    created = fallback.attempt(create, {"run_id": None, "run": name}, "run", {"tags": cut})
    experiment, run_id = created if created is not None else (None, None)
    run = TrackedRun(uri, run_id, name, store_root, experiment=experiment)
    if params is not None:
        run.log_params(params)
        run.log_config(dict(params))
    return run


def attach(uri: str | None, run_id: str | None, fallback_dir: Path) -> TrackedRun:
    """A run that another process started and will end; this one only adds to it.

    Args:
        uri: `TrackedRun.uri` over there; None when tracking is off.
        run_id: `TrackedRun.run_id` over there; None when the run could not be started.
        fallback_dir: folder of the fallback file, normally the store's root.
    """
    return TrackedRun(uri, run_id, run_id or "attached", fallback_dir, owned=False)
