"""Stages that run in another flow run, on a pool with the hardware they need, such as training on GPU machines.

The parent passes the stage's inputs on, waits, and reads the result from the shared store by its cache key. It holds
no GPU while it waits. A parent that ends cancels its child; if it cannot (kill -9, a lost machine), the child notices
and cancels itself, in `tasks.remote.stage_worker`.
"""

import logging
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Self

import httpx
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.objects import FlowRun
from prefect.deployments import run_deployment
from prefect.exceptions import ObjectNotFound, PrefectHTTPStatusError
from prefect.runtime import flow_run
from prefect.settings import PREFECT_API_URL, PREFECT_UI_URL
from prefect.states import Cancelling, State
from pydantic_core import to_jsonable_python

from stillhouse.errors import ConfigError, StoreError, TrainingError
from stillhouse.store.artifacts import artifact_in
from stillhouse.types import Artifact, FrozenModel, JsonObject, Model
from tasks.cache.results import artifacts_in
from tasks.cache.stage import call_stage, find_cached
from tasks.run.context import Run, RunContext
from tasks.run.interruption import raise_if_paused
from tasks.run.progress import progress
from tasks.run.stage import Stage
from tasks.server.temporary_server import has_lasting_server

RETRIES: Final = 2
"""Restarts of a child that crashed (killed, preempted, its machine lost); training resumes from its checkpoint."""
_POLL_S: Final = 2.0
_logger = logging.getLogger("stillhouse.dispatch")


class Stopped(Exception):
    """The wait for the child was stopped."""


class StageCall(FrozenModel):
    """Parameters of a flow run that runs one stage of another."""

    stage: str
    key: str
    """The stage's cache key as the parent computed it."""
    inputs: JsonObject
    weights: dict[str, Artifact]
    """Artifacts of the models among the inputs, by input name: the child's machine may lack them."""
    context: RunContext

    @classmethod
    def of(cls, stage: Stage, inputs: JsonObject, context: RunContext) -> Self:
        """Return the call of a stage with a task's inputs, which may hold artifacts, models and config sections.

        Where the store is a URL, artifacts that this machine made for the call are uploaded. Raises StoreError if the
        storage cannot be reached or refuses.
        """
        for artifact in artifacts_in(list(inputs.values())):
            context.store.share(artifact)
        if context.store.remote is None:
            # The child's working directory may be another.
            runtime = context.runtime.model_copy(update={"store": str(context.store.root)})
            context = context.model_copy(update={"runtime": runtime})
        models = {name: artifact_in(Path(model.ref)) for name, model in inputs.items() if isinstance(model, Model)}
        return cls(
            stage=stage.name,
            key=stage.key(inputs),
            inputs=to_jsonable_python(inputs),
            weights={name: artifact for name, artifact in models.items() if artifact is not None},
            context=context,
        )


def call_stage_on(deployment: str | None, stage: Stage, run: Run, *, label: str | None = None, **inputs: Any) -> Any:
    """Do as `call_stage`, in a flow run of `deployment` unless that is None or the result is in the cache."""
    if deployment is None:
        return call_stage(stage, run, label=label, **inputs)
    started = time.monotonic()
    result = find_cached(stage, run, inputs)
    cached = result is not None
    if result is None:
        progress().say(f"handed to {deployment}")
        run_stage_on(deployment, StageCall.of(stage, inputs, run.context))
        result = load_result(deployment, stage, run, inputs)
    seconds = time.monotonic() - started
    run.record_stage(stage, result, cached=cached, seconds=seconds, label=label, inputs=inputs.values())
    return result


def load_result(deployment: str, stage: Stage, run: Run, inputs: Mapping[str, Any]) -> Any:
    """Return the result of a stage that a flow run of `deployment` finished; raise StoreError if it is not here."""
    result = find_cached(stage, run, inputs, ignore_refresh=True)
    if result is None:
        raise StoreError(
            f"{deployment} finished the stage {stage.name}, but {run.context.runtime.store} holds no intact result "
            f"under {stage.key(inputs)}: runtime.store has to be the same folder, or the same URL, for both"
        )
    return result


def run_stage_on(deployment: str, call: StageCall, stop: threading.Event | None = None) -> None:
    """Run a stage in a flow run of `deployment`, to its end or until `stop` is set, for threads get no signals.

    Raises ConfigError if there is no such deployment; TrainingError, with the child's reason, if it failed, was
    cancelled, or crashed too often; Stopped if `stop` was set.
    """
    stop = stop or threading.Event()
    # Makes sure that one attempt has one child, also if the request that creates it is sent twice.
    attempt = f"{call.key}/{flow_run.id}/{flow_run.run_count}"
    with get_client(sync_client=True) as client:
        for crashes in range(1 + RETRIES):
            child = _start(deployment, call, f"{attempt}/{crashes}")
            state = _wait(child, client, stop)
            if state.is_completed():
                return
            outcome = f"{deployment}: {child.name} ended as {state.name}: {state.message or 'no reason was given'}"
            if not state.is_crashed() or crashes == RETRIES:
                raise TrainingError(f"{outcome} {_url(child)}")
            _logger.warning("%s; starting it again", outcome)


def _start(deployment: str, call: StageCall, idempotency_key: str) -> FlowRun:
    try:
        child: FlowRun = run_deployment(  # type: ignore[assignment]
            deployment,
            parameters={"call": call.model_dump(mode="json")},
            timeout=0,
            idempotency_key=idempotency_key,
            tags=["stillhouse", call.stage],
        )
    except ObjectNotFound as error:
        server = (
            PREFECT_API_URL.value()
            if has_lasting_server()
            else "this run's own temporary server (PREFECT_API_URL is not set)"
        )
        setting = "rollout_deployment" if call.stage == "rollouts" else "training_deployment"
        raise ConfigError(
            f"runtime.{setting} = {deployment!r}: no such deployment on {server}. Deploy it by `make deploy` "
            "and start this run there, or leave the field out to work here"
        ) from error
    _logger.info("%s: %s waits for a worker %s", deployment, child.name, _url(child))
    return child


def _url(child: FlowRun) -> str:
    base = PREFECT_UI_URL.value()
    return "" if base is None else f"({base}/runs/flow-run/{child.id})"


def _wait(child: FlowRun, client: SyncPrefectClient, stop: threading.Event) -> State[Any]:
    """Wait for the child's final state. Any exception, also a signal's, cancels the child."""
    last = child.state
    try:
        while True:
            state = _read_state(child, client) or last
            if state is not None and state.is_final():
                return state
            if state is not None and (last is None or state.name != last.name):
                _logger.info("%s: %s", child.name, state.name)
            last = state
            raise_if_paused()
            if stop.wait(_POLL_S):
                raise Stopped
    except BaseException:
        try:
            client.set_flow_run_state(child.id, Cancelling(message="The flow run that waited for it ended."))
        except (httpx.HTTPError, PrefectHTTPStatusError) as error:
            _logger.warning("%s: could not be cancelled: %s; it will cancel itself", child.name, error)
        raise


def _read_state(child: FlowRun, client: SyncPrefectClient) -> State[Any] | None:
    """Return the child's state; None while the server is away, which should not end a training of hours."""
    try:
        return client.read_flow_run(child.id).state
    except httpx.TransportError as error:
        _logger.warning("%s: Prefect's server cannot be reached: %s; trying again", child.name, error)
    except PrefectHTTPStatusError as error:
        if error.response.status_code < 500:
            raise
        _logger.warning("%s: Prefect's server answers %d; trying again", child.name, error.response.status_code)
    return None
