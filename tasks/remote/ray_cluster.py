"""Prefect tasks on the workers of a Ray cluster."""

import asyncio
import logging
import os
import secrets
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final
from urllib.parse import urlsplit

from prefect import Task
from prefect.client.orchestration import get_client
from prefect.settings import PREFECT_API_URL, temporary_settings
from prefect.states import State

from stillhouse.config import RuntimeConfig
from stillhouse.errors import ConfigError, StillhouseError
from tasks.cache.stage import RunTask

_TRIES: Final = 3
"""Of a task whose worker was killed; what it had paid for is in the journal."""
_CONNECT_TIMEOUT_S: Final = 30.0


@contextmanager
def ray_workers(runtime: RuntimeConfig, *, num_workers: int, gpus: int = 0) -> Iterator[RunTask]:
    """Yield what runs tasks, with `gpus` each, on the workers of a cluster that have the store under the same path.

    The first task joins the cluster, or starts one of `num_workers` here; the end of the block leaves or stops it.
    Raises ConfigError if the extra `ray` is not installed, or workers elsewhere could not read the store. A call raises
    ConfigError if no cluster answers at `runtime.ray_address`; StillhouseError if none could be started on this
    machine, or a task's worker was killed on every try.
    """
    if runtime.ray_address is None:
        _require_token()
    elif "://" in runtime.store:
        raise ConfigError(
            f"runtime.task_runner is `ray` on the cluster at {runtime.ray_address}, whose workers do not read "
            f"runtime.store = {runtime.store!r}; expected a folder that they have under the same path. Set it to "
            "one, or have flow runs sample (runtime.rollout_deployment)"
        )
    prefect_ray = _import_prefect_ray()
    with ExitStack() as opened:
        if runtime.ray_address is None:
            # Workers elsewhere take the URL of Prefect's server from their environment. Without it, each worker here
            # would start a server of its own, which takes 20 seconds.
            with get_client(sync_client=True) as client:
                url = str(client.api_url)
            opened.enter_context(temporary_settings({PREFECT_API_URL: url}))
        runner: Any = None

        async def run_task(task: Task[..., Any], arguments: dict[str, Any]) -> State[Any]:
            nonlocal runner
            runner = runner or opened.enter_context(_runner(prefect_ray, runtime, num_workers))
            with prefect_ray.context.remote_options(num_cpus=1, num_gpus=gpus, max_retries=_TRIES - 1):
                future = runner.submit(task, arguments)
            return await _state_of(task, future.wrapped_future)

        yield run_task


def _require_token() -> None:
    """Protect a cluster started by this process with a token; Ray reads the setting when it is imported.

    Ray listens on all interfaces, and anyone who reaches it could make the workers run anything.
    """
    if "ray._raylet" not in sys.modules:
        os.environ.setdefault("RAY_AUTH_MODE", "token")
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))


def _import_prefect_ray() -> Any:
    try:
        import prefect_ray
        import prefect_ray.context
        import ray  # noqa: F401  # prefect_ray itself imports it when it is first used
    except ImportError as error:
        raise ConfigError(
            "runtime.task_runner is `ray`, but prefect-ray is not installed: pip install -e '.[ray]', or set "
            "runtime.task_runner to `local`"
        ) from error
    return prefect_ray


@contextmanager
def _runner(prefect_ray: Any, runtime: RuntimeConfig, num_workers: int) -> Iterator[Any]:
    settings: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.WARNING}
    if runtime.ray_address is None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        settings |= {"num_cpus": num_workers, "include_dashboard": False}
    runner = prefect_ray.RayTaskRunner(address=runtime.ray_address or "local", init_kwargs=settings)
    with ExitStack() as opened:
        try:
            if runtime.ray_address is not None:
                _check_port(runtime.ray_address)
            with _sigterm_kept():
                opened.enter_context(runner)
        # Ray raises many kinds, its plainest for a start that takes too long.
        except Exception as error:
            if runtime.ray_address is None:
                raise StillhouseError(
                    f"runtime.task_runner is `ray`, and no Ray cluster could be started on this machine: {error}. Set "
                    "it to `local`, or name a cluster in runtime.ray_address"
                ) from error
            raise ConfigError(
                f"runtime.ray_address: no Ray cluster answers at {runtime.ray_address}: {error}. Start one there, or "
                "leave the field out to have a cluster on this machine"
            ) from error
        yield runner


def _check_port(address: str) -> None:
    """Raise OSError at once if nothing listens at an address: Ray itself tries for more than ten minutes."""
    place = urlsplit(address if "://" in address else f"//{address}")
    if place.hostname is not None and place.port is not None:
        socket.create_connection((place.hostname, place.port), timeout=_CONNECT_TIMEOUT_S).close()


@contextmanager
def _sigterm_kept() -> Iterator[None]:
    """Restore the SIGTERM handler that cancels the flow, which Ray replaces."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, handler)


async def _state_of(task: Task[..., Any], reference: Any) -> State[Any]:
    import ray
    from ray.exceptions import RayError

    try:
        return await asyncio.wrap_future(reference.future())
    except asyncio.CancelledError:
        ray.cancel(reference)
        raise
    except RayError as error:
        raise StillhouseError(
            f"{task.name}: the Ray worker of one of its shards was killed, {_TRIES} times, as happens where memory "
            f"runs out: {error} Give each worker more memory, or set runtime.shard_size lower, and run the same "
            "command again: finished shards are kept"
        ) from error
