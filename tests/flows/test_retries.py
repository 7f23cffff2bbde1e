"""Which failures of a stage Prefect tries again, as Prefect itself decides it."""

import asyncio

import pytest
from prefect import flow, task

from stillhouse.errors import FailureBudgetExceeded, StillhouseError, TrainingKilled
from tasks.cache.stage import CACHED_STAGE

AT_ONCE = {**CACHED_STAGE, "retry_delay_seconds": 0, "persist_result": False}


@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.parametrize(
    ("error", "num_calls"),
    [
        (FailureBudgetExceeded("too many"), 1),
        (StillhouseError("explained"), 1),
        (TrainingKilled("out of memory"), 3),
        (OSError("the node went away"), 3),
    ],
)
def test_crashes_are_tried_again_and_explained_failures_are_not(kind: str, error: Exception, num_calls: int) -> None:
    calls = 0

    def stage(key: str) -> None:
        nonlocal calls
        calls += 1
        raise error

    async def async_stage(key: str) -> None:
        stage(key)

    @flow
    def run() -> None:
        if kind == "sync":
            task(stage, **AT_ONCE)("some/key")
        else:
            asyncio.run(task(async_stage, **AT_ONCE)("some/key"))

    with pytest.raises(type(error)):
        run()
    assert calls == num_calls
