"""Starts, resumes or attaches to a tracked run."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stillhouse.config import TrackingConfig
from stillhouse.tracking.client import connect, default_uri, experiment_id, is_database
from stillhouse.tracking.fallback import fallback_in
from stillhouse.tracking.lifecycle import end_stale_runs, resume_suspended_run
from stillhouse.tracking.metadata import MAX_TAG_CHARS, origin_tags, shorten
from stillhouse.tracking.run import TrackedRun

_logger = logging.getLogger(__name__)


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
    """Starts a run, which records nothing if tracking is off. Never raises.

    A run without parent first ends runs left open by killed processes of this host. A suspended flow run resumes its
    run.

    The default database, its artifacts and the fallback file are in `store_root`; with a `shared_url` a database's
    artifacts are on that storage. `params`, a nested config, are recorded flat and uncut as `config.yaml`. Work that is
    recorded afterwards gives the second since the epoch at which it `started_at`.
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

    fallback = fallback_in(store_root, uri)
    created = fallback.attempt(create, {"run_id": None, "run": name}, "run", {"tags": cut})
    experiment, run_id = created if created is not None else (None, None)
    run = TrackedRun(uri, run_id, name, store_root, experiment=experiment)
    if params is not None:
        run.log_params(params)
        run.log_config(dict(params))
    return run


def attach(uri: str | None, run_id: str | None, fallback_dir: Path) -> TrackedRun:
    """Attaches to a run that another process started and will end, by its `TrackedRun.uri` and `TrackedRun.run_id`."""
    return TrackedRun(uri, run_id, run_id or "attached", fallback_dir, owned=False)
