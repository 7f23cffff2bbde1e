"""MLflow's client without telemetry, noisy logs or minute-long waits, and the addresses of its pages.

MLflow is imported only when a run is tracked, since the import takes seconds.
"""

import logging
import os
import shlex
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from threading import Lock
from typing import Any
from urllib.parse import quote

from stillhouse.tracking.database import begin_database, check_database, exclusive, follow_store, is_database
from stillhouse.tracking.fallback import is_sent

_ENVIRONMENT = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    "MLFLOW_DISABLE_AGENT_HINT": "true",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    # MLflow's own logs repeat, with tracebacks, what the fallback reports in one line.
    "MLFLOW_LOGGING_LEVEL": "CRITICAL",
    # MLflow's defaults (7 retries, 120 s each) hold a run up for minutes when the server is away.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "30",
}
"""Set before MLflow is imported, each unless the user set it."""

_EXPERIMENT_TAGS = {"mlflow.experimentKind": "custom_model_development"}
"""MLflow's page then opens on training runs and their curves, not on traces."""

_QUERY = "?workflowType=machine_learning"
"""Of MLflow's addresses, which have it behind `#`; without it the pages are those for agents, which have no runs."""

_NOISY_LOGGERS = ("mlflow", "alembic")

_connecting = Lock()


def default_uri(store_root: Path) -> str:
    """Return the default tracking URI: MLFLOW_TRACKING_URI, else a SQLite database of the store."""
    return os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{store_root.absolute() / 'mlflow.db'}"


def import_client() -> type:
    """Return MLflow's class of clients, with the store of databases; the import takes seconds."""
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    for name in ("mlflow.store.tracking.sqlalchemy_store", "alembic.command"):
        import_module(name)
    from mlflow import MlflowClient

    return MlflowClient


def connect(uri: str) -> Any:
    """Return an `MlflowClient` for `uri`, shared by the process, or TrackingError; a fresh database gets its tables."""
    # A thread that asks while another connects waits for it.
    with _connecting:
        return _client(uri)


@cache
def _client(uri: str) -> Any:
    client_type = import_client()
    # If MLflow was imported before, its loggers are configured already.
    for name in _NOISY_LOGGERS:
        logging.getLogger(name).setLevel(os.environ["MLFLOW_LOGGING_LEVEL"])
    # The fallback warns once for all retries of a request to MLflow, of which urllib3 reports each.
    logging.getLogger("urllib3.connectionpool").addFilter(lambda record: "/mlflow" not in record.getMessage())
    if not is_database(uri):
        return client_type(uri)
    check_database(uri)
    with exclusive(uri):
        begin_database(client_type, uri)
        client = client_type(uri)
        follow_store(uri)
        return client


def experiment_id(client: Any, name: str, artifact_location: str | None) -> str:
    """Return the id of the experiment `name`, created if missing; the server may choose `artifact_location`."""
    from mlflow.exceptions import MlflowException

    experiment = client.get_experiment_by_name(name)
    if experiment is None:
        try:
            return client.create_experiment(name, artifact_location=artifact_location, tags=_EXPERIMENT_TAGS)
        except MlflowException:
            # Two processes that start together both find it missing; the second one's creation is refused.
            experiment = client.get_experiment_by_name(name)
            if experiment is None:
                raise
    return experiment.experiment_id


@dataclass(frozen=True, slots=True)
class RunPages:
    """Addresses of MLflow's pages of one run; for a database they need `ui_command` to run."""

    uri: str | None
    """Tracking URI; None when tracking is off."""
    run_id: str | None
    """Id in MLflow; None when the run could not be started."""
    experiment: str | None
    """Id of its experiment; None where it is not known, as for a run of another process."""

    @property
    def run(self) -> str | None:
        """Return the run's page, or the server's where the experiment is not known; None without a run."""
        if self.uri is None or not is_sent(self.run_id):
            return None
        if self.experiment is None:
            return _server(self.uri)
        return f"{_server(self.uri)}/#/experiments/{self.experiment}/runs/{self.run_id}{_QUERY}"

    def file(self, path: str) -> str | None:
        """Return the page of a file of the run, by its path among the artifacts; None where `run` is no run's page."""
        return None if self.run is None or self.experiment is None else self.run.replace("?", f"/artifacts/{path}?")

    def model(self, name: str, version: str) -> str | None:
        """Return the page of a registered model's version; None without tracking."""
        return None if self.uri is None else f"{_server(self.uri)}/#/models/{quote(name)}/versions/{version}{_QUERY}"

    @property
    def ui_command(self) -> str | None:
        """Return what to type to see the pages of a database; None for a server, which shows its own."""
        if self.uri is None or not is_database(self.uri):
            return None
        # Without the setting the server starts eight job processes that only its GenAI evaluations use.
        return f"MLFLOW_SERVER_ENABLE_JOB_EXECUTION=false mlflow ui --backend-store-uri {shlex.quote(self.uri)}"


def _server(uri: str) -> str:
    """Return the address of the pages; of a database, its server's default."""
    return "http://127.0.0.1:5000" if is_database(uri) else uri.rstrip("/")
