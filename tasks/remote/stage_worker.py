"""The child's side of `tasks.remote.flow_run_stage`: runs one stage, and stops when the parent flow run ends."""

import os
import signal
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final, get_type_hints
from uuid import UUID

import httpx
from prefect.client.orchestration import get_client
from prefect.exceptions import PrefectHTTPStatusError
from prefect.runtime import flow_run
from prefect.states import Cancelling
from pydantic import TypeAdapter

from stillhouse.config import DistillConfig
from stillhouse.errors import ConfigError, StoreError
from stillhouse.store.private import private_umask
from stillhouse.tracking.tracked_run import TrackedRun
from stillhouse.types import Artifact, JsonObject
from tasks.cache.results import artifacts_in, with_local_paths
from tasks.cache.stage import load_or_run, load_or_run_async
from tasks.remote.flow_run_stage import StageCall
from tasks.run.context import Run
from tasks.run.interruption import run_until_done
from tasks.run.keys import find_keys
from tasks.run.progress import progress, shown_by
from tasks.run.progress_artifact import ProgressArtifacts
from tasks.run.stage import Stage
from tasks.run.watch import RunWatch
from tasks.server.outages import wait_out_outages

_POLL_S: Final = 10.0
_GRACE_S: Final = 60.0


def run_stage_call(call: JsonObject, stages: Iterable[Stage]) -> None:
    """Run the stage of a `StageCall`, one of `stages`; the result goes to the store.

    Raises ConfigError if parent and child run different versions of the code; StoreError if this machine cannot reach
    an input; StillhouseError as the stage.
    """
    wait_out_outages()
    stage_call = StageCall.model_validate(call)
    remote = {stage.name: stage for stage in stages if stage.is_remote}
    if stage_call.stage not in remote:
        raise ConfigError(
            f"stage {stage_call.stage!r} cannot run for another flow run; expected one of {', '.join(remote)}"
        )
    stage = remote[stage_call.stage]
    find_keys(stage_call.context.variables)
    inputs = local_inputs(stage_call, stage)
    if (key := stage.key(inputs)) != stage_call.key:
        raise ConfigError(
            f"stage {stage_call.stage}: the parent asks for {stage_call.key} and this worker would make {key}: they "
            "run different versions of Stillhouse. Bring both to the same version"
        )
    unrecorded = TrackedRun(None, None, stage_call.stage, stage_call.context.store.root)
    run = Run(name=stage_call.stage, config=DistillConfig(), context=stage_call.context, record=unrecorded)
    watch = RunWatch([stage.name], progress(), {})
    shown = ProgressArtifacts(unrecorded, lambda: watch.bars)
    with private_umask(), shown_by(watch), shown, _cancelled_with_parent():
        stage_call.context.store.make()
        if stage.task.isasync:
            run_until_done(load_or_run_async(stage, run, inputs))
        else:
            load_or_run(stage, run, inputs)


def local_inputs(stage_call: StageCall, stage: Stage) -> dict[str, Any]:
    """Return the inputs of the stage's task with artifacts as here; raise StoreError for one that cannot be reached."""
    store, types = stage_call.context.store, get_type_hints(stage.task.fn)
    inputs = {name: TypeAdapter(types[name]).validate_python(value) for name, value in stage_call.inputs.items()}
    for name, artifact in stage_call.weights.items():
        weights = store.here(artifact)
        inputs[name] = inputs[name].model_copy(update={"ref": weights.uri})
        _obtain(weights, stage_call)
    for name, value in inputs.items():
        inputs[name] = with_local_paths(value, store)
        for artifact in artifacts_in(inputs[name]):
            _obtain(artifact, stage_call)
    return inputs


def _obtain(artifact: Artifact, stage_call: StageCall) -> None:
    if problem := stage_call.context.store.obtain(artifact):
        raise StoreError(
            f"stage {stage_call.stage}: an input cannot be used on this machine: {problem}. runtime.store "
            f"({stage_call.context.runtime.store}) has to be a folder that parent and worker share, or a URL"
        )


@contextmanager
def _cancelled_with_parent() -> Iterator[None]:
    """Cancel this flow run as soon as its parent has ended or is being cancelled."""
    parent, done = flow_run.parent_flow_run_id, threading.Event()
    if parent is not None:
        arguments = (UUID(parent), UUID(flow_run.id), done)
        threading.Thread(target=_watch, args=arguments, name="watch-parent", daemon=True).start()
    try:
        yield
    finally:
        done.set()


def _watch(parent: UUID, child: UUID, done: threading.Event) -> None:
    with get_client(sync_client=True) as client:
        while not done.wait(_POLL_S):
            try:
                state = client.read_flow_run(parent).state
                if state is None or not (state.is_final() or state.is_cancelling()):
                    continue
                client.set_flow_run_state(
                    child, Cancelling(message=f"The flow run that waited for it is {state.name}.")
                )
            except (httpx.HTTPError, PrefectHTTPStatusError):
                # A server that is away says nothing about the parent.
                continue
            break
    # The worker kills a flow run that is being cancelled; one that has lost its worker ends itself.
    if not done.wait(_GRACE_S):
        os.kill(os.getpid(), signal.SIGTERM)
