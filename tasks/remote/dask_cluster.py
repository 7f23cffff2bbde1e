"""Tasks run by the workers of a Dask cluster."""

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from prefect import Task
from prefect.client.orchestration import get_client
from prefect.settings import PREFECT_API_URL, temporary_settings
from prefect.states import State

from stillhouse.config import RuntimeConfig
from stillhouse.errors import ConfigError, StillhouseError
from tasks.cache.caching import Call


@contextmanager
def dask_workers(runtime: RuntimeConfig) -> Iterator[Call]:
    """What runs tasks in the workers of a cluster, which need the store under the same path.

    A cluster on this machine starts with the first task and ends with the block. Both the block and the call raise:

    Raises:
        ConfigError: the extra `dask` is not installed, or no scheduler answers at `runtime.dask_address`.
        StillhouseError: every worker that was given a task was killed.
    """
    with _task_runner(runtime) as runner, known_server(is_local=runtime.dask_address is None):

        async def call(task: Task[..., Any], arguments: dict[str, Any]) -> State[Any]:
            _connect(runner, runtime)
            loop, ended = asyncio.get_running_loop(), asyncio.Event()

            def tell(_future: Any) -> None:
                # A run that is cancelled has closed its loop by the time the cluster ends.
                with suppress(RuntimeError):
                    loop.call_soon_threadsafe(ended.set)

            future = runner.submit(task, arguments).wrapped_future
            future.add_done_callback(tell)
            await ended.wait()
            return _state_of(task, future)

        yield call


@contextmanager
def known_server(*, is_local: bool) -> Iterator[None]:
    """Tells workers of a cluster on this machine of the Prefect server that this process asks, maybe one of its own.

    Each would start another otherwise, which takes it 20 seconds.

    Args:
        is_local: whether the cluster is on this machine; one elsewhere has to be told by its own environment.
    """
    if not is_local:
        yield
        return
    with get_client(sync_client=True) as client:
        url = str(client.api_url)
    with temporary_settings({PREFECT_API_URL: url}):
        yield


def _task_runner(runtime: RuntimeConfig) -> Any:
    try:
        from prefect_dask import DaskTaskRunner
    except ImportError as error:
        raise ConfigError(
            "runtime.task_runner is dask, but prefect-dask is not installed: pip install -e '.[dask]', or set "
            "runtime.task_runner to local"
        ) from error
    # Each tells of every connection it opens.
    logging.getLogger("distributed").setLevel(logging.WARNING)
    if runtime.dask_address is not None:
        return DaskTaskRunner(address=runtime.dask_address)
    return DaskTaskRunner(
        cluster_kwargs={
            "n_workers": runtime.label_processes,
            "threads_per_worker": 1,
            # Any port that is free, of this machine alone.
            "dashboard_address": "127.0.0.1:0",
            # Or any other user of this machine could have the workers run anything.
            "security": True,
        }
    )


def _connect(runner: Any, runtime: RuntimeConfig) -> None:
    try:
        _ = runner.client
    except (OSError, ValueError) as error:
        if runtime.dask_address is None:
            raise
        raise ConfigError(
            f"runtime.dask_address: no Dask scheduler answers at {runtime.dask_address}: {error}. Start one there, or "
            "leave the field out to have a cluster on this machine"
        ) from error


def _state_of(task: Task[..., Any], future: Any) -> State[Any]:
    from distributed import KilledWorker

    try:
        state: State[Any] = future.result()
        return state
    except KilledWorker as error:
        raise StillhouseError(
            f"{task.name}: every Dask worker that was given one of its shards was killed, as happens where memory "
            f"runs out: {error} Give each worker more memory, or set runtime.shard_size lower, and run the same "
            "command again: finished shards are kept"
        ) from error
