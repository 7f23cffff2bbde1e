"""A stage that runs in another flow run, where its pool has what it needs: training on the GPU machines, for one.

The parent passes the stage's inputs along, waits, and takes the result from the store that both share, by its cache
key. While it waits it holds no GPU. A parent that ends for whatever reason cancels its child; where it cannot (kill -9,
a lost machine) the child sees to it itself, in `tasks.run_stage`.
"""

import logging
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Self

import httpx
from prefect import Task
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.objects import FlowRun
from prefect.deployments import run_deployment
from prefect.exceptions import ObjectNotFound, PrefectHTTPStatusError
from prefect.runtime import flow_run
from prefect.settings import PREFECT_API_URL, PREFECT_UI_URL
from prefect.states import Cancelling, State
from pydantic import BaseModel, ConfigDict
from pydantic_core import to_jsonable_python

from stillhouse.config import StageName
from stillhouse.errors import ConfigError, StoreError, TrainingError
from stillhouse.store.artifacts import artifact_in
from stillhouse.types import Artifact, JsonObject, Model
from tasks.cache.stage import Stage, at_hand, call_stage
from tasks.run.context import Run, RunContext

RETRIES: Final = 2
"""Times a child that crashed (killed, preempted, its machine lost) is started again; training resumes."""
_LOOK_S: Final = 2.0
_logger = logging.getLogger("stillhouse.dispatch")


class Stopped(Exception):
    """Nobody waits for the child any more."""


class StageCall(BaseModel):
    """What a flow run needs to know to run one stage of another."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    stage: StageName
    key: str
    """The stage's cache key as the parent computed it, by which the result is found."""
    inputs: JsonObject
    """The task's arguments."""
    weights: dict[str, Artifact]
    """What the models among the inputs name in the store, by the input's name: the child's machine may lack it."""
    context: RunContext

    @classmethod
    def of(cls, stage: Stage, inputs: JsonObject, context: RunContext) -> Self:
        """The call of a stage with a task's arguments, which may hold artifacts, models and config sections."""
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


def call_stage_in(
    deployment: str | None, stage: Stage, task: Task[..., Any], run: Run, *, label: str | None = None, **inputs: Any
) -> Any:
    """As `call_stage`, in a flow run of `deployment` unless that is None or the result is at hand.

    Raises:
        ConfigError: there is no such deployment, or no server that could know it.
        TrainingError: the child failed, was cancelled, or crashed too often; the message holds its reason.
        StoreError: the child finished, yet its result is not in this run's store.
    """
    if deployment is None:
        return call_stage(stage, task, run, label=label, **inputs)
    started = time.monotonic()
    result = at_hand(stage, run, inputs)
    cached = result is not None
    if result is None:
        run_in(deployment, StageCall.of(stage, inputs, run.context))
        result = made_elsewhere(deployment, stage, run, inputs)
    run.note_stage(label or stage.name, result, cached=cached, seconds=time.monotonic() - started)
    return result


def made_elsewhere(deployment: str, stage: Stage, run: Run, inputs: Mapping[str, Any]) -> Any:
    """The result of a stage that a flow run of `deployment` has finished.

    Raises:
        StoreError: it is not in this run's store.
    """
    result = at_hand(stage, _without_refresh(run), inputs)
    if result is None:
        raise StoreError(
            f"{deployment} finished the stage {stage.name}, but {run.context.runtime.store} holds no whole result "
            f"under {stage.key(inputs)}: runtime.store has to be the same folder, or the same URL, for both"
        )
    return result


def _without_refresh(run: Run) -> Run:
    runtime = run.context.runtime.model_copy(update={"refresh": ()})
    return replace(run, context=run.context.model_copy(update={"runtime": runtime}))


def run_in(deployment: str, call: StageCall, stop: threading.Event | None = None) -> None:
    """Runs a stage in a flow run of `deployment`, to its end.

    Args:
        deployment: of the flow `run-stage`.
        call: of the stage.
        stop: once it is set the child is cancelled; for a thread, which no signal reaches.

    Raises:
        ConfigError: there is no such deployment.
        TrainingError: the child failed, was cancelled, or crashed too often.
        Stopped: `stop` was set.
    """
    stop = stop or threading.Event()
    # An attempt of a flow run has one child, also where the request that makes it is sent twice.
    attempt = f"{call.key}/{flow_run.id}/{flow_run.run_count}"
    with get_client(sync_client=True) as client:
        for crashes in range(1 + RETRIES):
            child = _start(deployment, call, f"{attempt}/{crashes}")
            state = _wait(child, client, stop)
            if state.is_completed():
                return
            told = f"{deployment}: {child.name} ended as {state.name}: {state.message or 'no reason was given'}"
            if not state.is_crashed() or crashes == RETRIES:
                raise TrainingError(f"{told} {_page(child)}")
            _logger.warning("%s; starting it again", told)


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
        server = PREFECT_API_URL.value() or "this run's own temporary server (PREFECT_API_URL is not set)"
        setting = "rollout_deployment" if call.stage == "rollouts" else "training_deployment"
        raise ConfigError(
            f"runtime.{setting} = {deployment!r}: no such deployment on {server}. Deploy it by `make deploy` "
            "and start this run there, or leave the field out to work here"
        ) from error
    _logger.info("%s: %s waits for a worker %s", deployment, child.name, _page(child))
    return child


def _page(child: FlowRun) -> str:
    base = PREFECT_UI_URL.value()
    return "" if base is None else f"({base}/runs/flow-run/{child.id})"


def _wait(child: FlowRun, client: SyncPrefectClient, stop: threading.Event) -> State[Any]:
    """The child's final state. Whatever ends the wait cancels the child."""
    seen = child.state
    try:
        while True:
            state = _read_state(child, client) or seen
            if state is not None and state.is_final():
                return state
            if state is not None and (seen is None or state.name != seen.name):
                _logger.info("%s: %s", child.name, state.name)
            seen = state
            if stop.wait(_LOOK_S):
                raise Stopped
    except BaseException:
        _cancel(child, client)
        raise


def _read_state(child: FlowRun, client: SyncPrefectClient) -> State[Any] | None:
    """The child's state; None while the server is away, for which a training of hours need not end."""
    try:
        return client.read_flow_run(child.id).state
    except httpx.TransportError as error:
        _logger.warning("%s: Prefect's server cannot be asked: %s; asking again", child.name, error)
    except PrefectHTTPStatusError as error:
        if error.response.status_code < 500:
            raise
        _logger.warning("%s: Prefect's server answers %d; asking again", child.name, error.response.status_code)
    return None


def _cancel(child: FlowRun, client: SyncPrefectClient) -> None:
    try:
        client.set_flow_run_state(child.id, Cancelling(message="The flow run that waited for it ended."))
    except (httpx.HTTPError, PrefectHTTPStatusError) as error:
        _logger.warning("%s: could not be cancelled: %s; it ends itself", child.name, error)
