"""Where MLflow shows what was tracked."""

from dataclasses import dataclass
from urllib.parse import quote

from stillhouse.tracking.client import is_database


@dataclass(frozen=True, slots=True)
class Pages:
    """Addresses of MLflow's pages around one run. Those of a database answer once `ui_command` runs."""

    uri: str | None
    """Tracking URI; None when tracking is off."""
    run_id: str | None
    """Id in MLflow; None when the run could not be started."""
    experiment: str | None
    """Id of its experiment; None where it is not known, as for a run of another process."""

    @property
    def run(self) -> str | None:
        """The run's page, or the server's where the experiment is not known; None without a run."""
        if self.uri is None or self.run_id is None:
            return None
        if self.experiment is None:
            return _server(self.uri)
        return f"{_server(self.uri)}/#/experiments/{self.experiment}/runs/{self.run_id}"

    def file(self, path: str) -> str | None:
        """The page of one of the run's files, by its path among the artifacts; None where `run` is no run's page."""
        return None if self.run is None or self.experiment is None else f"{self.run}/artifacts/{path}"

    def model(self, name: str, version: str) -> str | None:
        """The page of a registered model's version; None without tracking."""
        return None if self.uri is None else f"{_server(self.uri)}/#/models/{quote(name)}/versions/{version}"

    @property
    def ui_command(self) -> str | None:
        """What to type to see the pages of a database; None for a server, which shows its own."""
        if self.uri is None or not is_database(self.uri):
            return None
        # Without the setting the server starts eight job processes that only its GenAI evaluations use.
        return f"MLFLOW_SERVER_ENABLE_JOB_EXECUTION=false mlflow ui --backend-store-uri {self.uri}"


def _server(uri: str) -> str:
    """Where the pages are; for a database, where its server puts them unless told otherwise."""
    return "http://127.0.0.1:5000" if is_database(uri) else uri.rstrip("/")
