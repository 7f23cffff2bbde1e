"""A stage of a flow: declared once, beside its task, and read by flows, progress, the closing table and other machines.

A key is stage name / explicit version / digest of the stage's own config section and its inputs' fingerprints.
Prefect's own policies are not used: INPUTS does not know which task it belongs to, and TASK_SOURCE sees a changed
comment but not a changed helper. The version is bumped by hand when a stage's behaviour changes.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import Any, Final

from prefect import Task, task
from prefect.states import State
from pydantic import BaseModel

from stillhouse.config import DistillConfig
from stillhouse.config.section import identity_of
from stillhouse.errors import StillhouseError, TrainingKilled
from stillhouse.store import digest
from stillhouse.types import Artifact, Model

Condition = Callable[[DistillConfig], bool]

EVALUATION_OF: Final = "evaluation of "
"""Prefix of the name under which a run lists the evaluation of a model."""


@dataclass(eq=False)
class Stage:
    name: str
    version: int
    """Of its behaviour."""
    result: str
    """Its line in the closing table, with names of facts of its result."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Facts that the line goes on with where they are not zero, with their words."""
    when: Condition = lambda config: True
    """Whether a flow that lists it goes through it."""
    foreseen: bool = True
    """Whether it surely runs `when` it may; else a run finds that out, and its progress does not announce it."""
    is_remote: bool = False
    """Whether a flow run on another machine may run it for this one."""
    names: Callable[[Sequence[str]], Iterable[str]] | None = None
    """Names under which a run records it, given those before it; None for its own alone."""
    task: Task[..., Any] = field(init=False, repr=False)

    def made_by(self, function: Callable[..., Any]) -> Task[..., Any]:
        """Return the Prefect task of a function that takes the stage's inputs, `key` and `context`.

        The function returns an `Artifact` or a model that holds some. A task stays as it is.
        """
        as_task = task(name=self.name.replace("_", "-"), **CACHED_STAGE)
        self.task = function if isinstance(function, Task) else as_task(function)
        return self.task

    def only_if(self, condition: Condition) -> "Stage":
        """Return the stage as a flow lists it that goes through it on a further condition."""
        limited = copy(self)
        limited.when = lambda config: condition(config) and self.when(config)
        return limited

    def key(self, inputs: Mapping[str, Any]) -> str:
        """Return `name/vVERSION-DIGEST`, equal for equal content of `inputs` in any process."""
        content = {name: _identity(value) for name, value in inputs.items()}
        return f"{self.name}/v{self.version}-{digest(content)}"


def only_if(condition: Condition, *stages: Stage) -> tuple[Stage, ...]:
    """Return stages that a flow goes through on a further condition."""
    return tuple(stage.only_if(condition) for stage in stages)


def planned_names(stages: Iterable[Stage]) -> list[str]:
    """Return the names under which a run will record stages, in their order, as far as they are foreseen."""
    names: list[str] = []
    for stage in stages:
        if stage.foreseen:
            names += [stage.name] if stage.names is None else stage.names(names)
    return names


def _identity(value: Any) -> Any:
    if isinstance(value, Artifact | Model):
        return value.fingerprint
    if isinstance(value, BaseModel):
        return identity_of(value)
    if isinstance(value, list | tuple):
        return [_identity(item) for item in value]
    return value


async def is_crash(_task: Any, _task_run: Any, state: State[Any]) -> bool:
    """Return whether to retry: crashes are retried, explained failures are not.

    A coroutine function, since `State.result` is a coroutine inside async tasks and a value inside others. Prefect
    silently ignores callables that are no functions here.
    """
    error = await state.aresult(raise_on_failure=False)
    return isinstance(error, TrainingKilled) or not isinstance(error, StillhouseError)


CACHED_STAGE: dict[str, Any] = {
    # Computed by `tasks.cache.stage` and passed along.
    "cache_key_fn": lambda context, parameters: parameters["key"],
    "persist_result": True,
    "result_serializer": "json",
    "cache_result_in_memory": False,
    "retries": 2,
    "retry_delay_seconds": [5, 30],
    "retry_condition_fn": is_crash,
}
