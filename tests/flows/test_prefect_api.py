"""What is known of flow runs, on a real Prefect server."""

from uuid import uuid4

from prefect import flow
from prefect.runtime import flow_run

from tasks.run.prefect_api import has_ended


def test_a_flow_run_has_ended_once_it_is_over_and_an_unknown_one_has_not() -> None:
    @flow
    def watched() -> tuple[str, bool]:
        return str(flow_run.id), has_ended(str(flow_run.id))

    run_id, meanwhile = watched()
    assert not meanwhile
    assert has_ended(run_id)
    assert not has_ended(str(uuid4()))
