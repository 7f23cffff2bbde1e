"""Records of a run as JSON that can be sent to MLflow now or, from the fallback file, later."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from stillhouse.tracking.metadata import dataset_input
from stillhouse.tracking.traces import send_trace
from stillhouse.types import JsonObject

_logger = logging.getLogger(__name__)

_MAX_PARAMS_PER_CALL: Final = 100


def _params(client: Any, run_id: str, record: JsonObject) -> None:
    from mlflow.entities import Param

    known = client.get_run(run_id).data.params
    changed = sorted(key for key, value in record["params"].items() if known.get(key, value) != value)
    if changed:
        _logger.warning("MLflow run %s keeps its first values of %s", run_id, ", ".join(changed))
    new = [Param(key, value) for key, value in record["params"].items() if key not in known]
    for start in range(0, len(new), _MAX_PARAMS_PER_CALL):
        client.log_batch(run_id, params=new[start : start + _MAX_PARAMS_PER_CALL])


def _metrics(client: Any, run_id: str, record: JsonObject) -> None:
    from mlflow.entities import Metric

    points = record["metrics"]
    client.log_batch(run_id, metrics=[Metric(p["key"], p["value"], p["timestamp_ms"], p["step"]) for p in points])


def _tags(client: Any, run_id: str, record: JsonObject) -> None:
    from mlflow.entities import RunTag

    client.log_batch(run_id, tags=[RunTag(key, value) for key, value in record["tags"].items()])


def _artifacts(client: Any, run_id: str, record: JsonObject) -> None:
    # MLflow takes a folder that is gone for one without files.
    if not Path(record["folder"]).is_dir():
        raise FileNotFoundError(record["folder"])
    client.log_artifacts(run_id, record["folder"], record["subfolder"])


def _dataset(client: Any, run_id: str, record: JsonObject) -> None:
    fields = (record[key] for key in ("name", "dataset", "digest", "context", "num_rows"))
    client.log_inputs(run_id, [dataset_input(*fields)])


def _status(client: Any, run_id: str, record: JsonObject) -> None:
    # A line of the fallback file says when it was.
    end_time = int(record["time"] * 1000) if "time" in record else None
    client.set_terminated(run_id, record["status"], end_time=end_time)


def _whole_table(client: Any, run_id: str, record: JsonObject) -> None:
    # MLflow adds rows to those of an earlier attempt.
    client.log_dict(run_id, {"columns": [], "data": []}, record["file"])
    client.log_table(run_id, record["columns"], record["file"])


SENDERS: Final[dict[str, Callable[[Any, str, JsonObject], None]]] = {
    "params": _params,
    "metrics": _metrics,
    "tags": _tags,
    "artifacts": _artifacts,
    "artifact": lambda client, run_id, record: client.log_artifact(run_id, record["file"], record["subfolder"]),
    "dataset": _dataset,
    "table": lambda client, run_id, record: client.log_table(run_id, record["columns"], record["file"]),
    "whole table": _whole_table,
    "trace": send_trace,
    "config": lambda client, run_id, record: client.log_dict(run_id, record["config"], record["file"]),
    "status": _status,
}
"""By kind: sends one record of a run through an `MlflowClient`. Sending it again changes nothing, except that the rows
of a `table` are added; it raises whatever MLflow raises."""
