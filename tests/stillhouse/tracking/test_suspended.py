from pathlib import Path
from typing import Any

from stillhouse.config import TrackingConfig
from stillhouse.tracking import start_run


def _of(flow_run: str, **more: str) -> dict[str, str | None]:
    return {"prefect.flow_run_id": flow_run, **more}


def test_the_run_of_a_suspended_flow_run_goes_on_in_another_process(
    tracking: TrackingConfig, client: Any, tmp_path: Path
) -> None:
    with start_run(tracking, tmp_path, "distill", tags=_of("one", place="here")) as run:
        run.log_metrics({"rows": 3.0})
        run.suspend()
    assert run.run_id is not None
    waiting = client.get_run(run.run_id)
    assert (waiting.info.status, waiting.info.end_time) == ("SCHEDULED", None)

    with start_run(tracking, tmp_path, "distill", tags=_of("two")) as other:
        assert other.run_id != run.run_id
        assert client.get_run(run.run_id).info.status == "SCHEDULED"
    with start_run(tracking, tmp_path, "distill", tags=_of("one", place="there")) as again:
        resumed = client.get_run(run.run_id)
        assert again.run_id == run.run_id
        assert resumed.info.status == "RUNNING"
        assert resumed.data.tags["place"] == "there"
        assert resumed.data.metrics == {"rows": 3.0}
    assert client.get_run(run.run_id).info.status == "FINISHED"
    with start_run(tracking, tmp_path, "distill", tags=_of("one")) as retried:
        assert retried.run_id != run.run_id


def test_a_suspended_run_whose_flow_run_is_over_is_ended(tracking: TrackingConfig, client: Any, tmp_path: Path) -> None:
    suspended = {}
    for flow_run in ("cancelled", "waiting"):
        with start_run(tracking, tmp_path, "distill", tags=_of(flow_run)) as run:
            run.suspend()
            suspended[flow_run] = run.run_id
    with start_run(tracking, tmp_path, "distill", tags=_of("next")) as run:
        run.end_suspended(lambda flow_run: flow_run == "cancelled")
    status = {flow_run: client.get_run(run_id).info.status for flow_run, run_id in suspended.items()}
    assert status == {"cancelled": "KILLED", "waiting": "SCHEDULED"}
