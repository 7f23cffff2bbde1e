"""The other side of `tasks.remote.flow_run_stage`: runs a stage for as long as the flow run that waits for it lives."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, get_type_hints
from uuid import UUID

import httpx
from prefect import Task
from prefect.client.orchestration import get_client
from prefect.exceptions import PrefectHTTPStatusError
from prefect.runtime import flow_run
from prefect.states import Cancelling
from pydantic import TypeAdapter

from stillhouse.config import DistillConfig
from stillhouse.errors import ConfigError, StoreError
from stillhouse.store.private import private_umask
from stillhouse.tracking.run import TrackedRun
from stillhouse.types import Artifact, JsonObject
from tasks.cache.results import artifacts_in, here
from tasks.cache.stage import Stage, recall, recall_shard
from tasks.evaluation import EVALUATION, evaluation_task
from tasks.remote.flow_run_stage import StageCall
from tasks.rollout_shard import ROLLOUTS, rollouts_task
from tasks.run.context import Run
from tasks.run.interruption import run_until_done
from tasks.training import ON_POLICY, SFT, on_policy_task, sft_task

STAGES: Final[dict[str, tuple[Stage, Task[..., Any]]]] = {
    SFT.name: (SFT, sft_task),
    ON_POLICY.name: (ON_POLICY, on_policy_task),
    EVALUATION.name: (EVALUATION, evaluation_task),
    ROLLOUTS.name: (ROLLOUTS, rollouts_task),
}
"""What can be run for another flow run, by the stage's name."""
_LOOK_S: Final = 10.0
_GRACE_S: Final = 60.0


def perform(call: JsonObject) -> None:
    """Runs the stage of a `StageCall`, whose result lands in the store.

    Raises:
        ConfigError: the code of this flow run is another version than its parent's.
        StoreError: an input is in no store that this machine reaches.
        StillhouseError: as the stage.
    """
    work = StageCall.model_validate(call)
    if work.stage not in STAGES:
        raise ConfigError(f"stage {work.stage!r} cannot run for another flow run; expected one of {', '.join(STAGES)}")
    stage, task = STAGES[work.stage]
    inputs = inputs_here(work)
    if (key := stage.key(inputs)) != work.key:
        raise ConfigError(
            f"stage {work.stage}: the parent asks for {work.key} and this worker would make {key}: they run different "
            "versions of Stillhouse. Bring both to the same version"
        )
    unrecorded = TrackedRun(None, None, work.stage, work.context.store.root)
    run = Run(name=work.stage, config=DistillConfig(), context=work.context, record=unrecorded)
    with private_umask(), _no_longer_than_the_parent():
        if task.isasync:
            run_until_done(recall_shard(stage, task, run, inputs))
        else:
            recall(stage, task, run, **inputs)


def inputs_here(work: StageCall) -> dict[str, Any]:
    """The task's arguments as the parent had them, their artifacts whole and where this machine has them.

    Raises:
        StoreError: an artifact is in no store that this machine reaches.
    """
    _, task = STAGES[work.stage]
    store, types = work.context.store, get_type_hints(task.fn)
    inputs = {name: TypeAdapter(types[name]).validate_python(value) for name, value in work.inputs.items()}
    for name, artifact in work.weights.items():
        weights = store.here(artifact)
        inputs[name] = inputs[name].model_copy(update={"ref": weights.uri})
        _obtain(weights, work)
    for name, value in inputs.items():
        inputs[name] = here(value, store)
        for artifact in artifacts_in(inputs[name]):
            _obtain(artifact, work)
    return inputs


def _obtain(artifact: Artifact, work: StageCall) -> None:
    if problem := work.context.store.obtain(artifact):
        raise StoreError(
            f"stage {work.stage}: an input cannot be used on this machine: {problem}. runtime.store "
            f"({work.context.runtime.store}) has to be a folder that parent and worker share, or a URL"
        )


@contextmanager
def _no_longer_than_the_parent() -> Iterator[None]:
    """Cancels this flow run as soon as the one that waits for it has ended or is being cancelled."""
    parent, done = flow_run.parent_flow_run_id, threading.Event()
    if parent is None:
        yield
        return
    watch = threading.Thread(
        target=_watch, args=(UUID(parent), UUID(flow_run.id), done), name="watch-parent", daemon=True
    )
    watch.start()
    try:
        yield
    finally:
        done.set()


def _watch(parent: UUID, own: UUID, done: threading.Event) -> None:
    with get_client(sync_client=True) as client:
        while not done.wait(_LOOK_S):
            try:
                state = client.read_flow_run(parent).state
                if state is None or not (state.is_final() or state.is_cancelling()):
                    continue
                client.set_flow_run_state(own, Cancelling(message=f"The flow run that waited for it is {state.name}."))
            except (httpx.HTTPError, PrefectHTTPStatusError):
                # A server that is away says nothing about the parent.
                continue
            break
    # The worker ends a flow run that is being cancelled; one that has lost its worker ends itself.
    if not done.wait(_GRACE_S):
        os.kill(os.getpid(), signal.SIGTERM)
