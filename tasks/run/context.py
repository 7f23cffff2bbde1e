"""One flow run: the context of its tasks, its stages so far, and its run in MLflow."""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import prefect.runtime

from stillhouse.config import BudgetConfig, DistillConfig, RuntimeConfig, TrackingConfig
from stillhouse.errors import ConfigError
from stillhouse.evaluation.promotion import Decision
from stillhouse.evaluation.suites import source_of
from stillhouse.rollouts.summary import add_up
from stillhouse.store import ArtifactStore, canonical_json
from stillhouse.store.atomic import write_atomic
from stillhouse.tracking import TrackedRun, start_run
from stillhouse.tracking.metadata import FLOW_RUN_TAG
from stillhouse.types import FrozenModel, JsonObject
from tasks.run.given_config import given_config
from tasks.run.keys import find_keys, variables_of
from tasks.run.live_page import LivePage
from tasks.run.paid_models import PaidModel, paid_models
from tasks.run.prefect_api import has_ended
from tasks.run.stage import Stage
from tasks.run.watch import RunWatch
from tasks.server.temporary_server import has_lasting_server


class RunContext(FrozenModel):
    """The part of a flow run that its tasks need. Never part of a cache key."""

    run_id: str
    """Identifies this attempt; its tasks share a budget by it."""
    runtime: RuntimeConfig
    tracking: TrackingConfig
    budget: BudgetConfig
    mlflow_run_id: str | None
    """The parent of the nested runs that stages open; None without tracking."""
    journal_part: str | None = None
    """Folder of the journal of a shard on another machine; None uses the store's."""
    paid_models: tuple[PaidModel, ...] = ()
    """Models behind endpoints, to be asked a first question before this run samples one of them."""
    variables: tuple[str, ...] = ()
    """Names of the keys that the run needs, to be looked for on each machine that works for it."""

    @property
    def store(self) -> ArtifactStore:
        return ArtifactStore(self.runtime.store, self.runtime.scratch)

    @property
    def journal(self) -> Path:
        return self.store.root if self.journal_part is None else Path(self.journal_part)

    def open_nested_run(
        self, name: str, params: JsonObject, *, started_at: float | None = None, continues: str | None = None
    ) -> TrackedRun:
        """Open an MLflow run for one stage, nested below this one; see `start_run`. Use it as a context manager."""
        return start_run(
            self.tracking,
            self.store.root,
            name,
            parent_run_id=self.mlflow_run_id,
            continues=continues,
            params=params or None,
            tags=_prefect_tags(),
            started_at=started_at,
            shared_url=self.store.url,
        )

    def reopen_nested_run(self, name: str, params: JsonObject, work_dir: Path) -> TrackedRun:
        """Do as `open_nested_run`, but a stage that was killed continues its MLflow run from `work_dir`."""
        run_file = work_dir / "mlflow_run.json"
        killed = json.loads(run_file.read_bytes())["run_id"] if run_file.exists() else None
        record = self.open_nested_run(name, params, continues=killed)
        if record.run_id is not None:
            write_atomic(run_file, canonical_json({"run_id": record.run_id}))
        return record


@dataclass(frozen=True, slots=True)
class StageOutcome:
    stage: Stage
    name: str
    """Under which the run records it."""
    result: Any
    cached: bool
    seconds: float
    inputs: tuple[Any, ...] = ()
    """All that it was given, or the artifacts among that."""
    is_of_rounds: bool = False
    """Whether it ran within `Run.recorded_as`, for a stage that the flow lists."""


@dataclass(slots=True)
class Run:
    name: str
    config: DistillConfig
    context: RunContext
    record: TrackedRun
    """The parent run in MLflow."""
    plan: tuple[Stage, ...] | None = None
    """The stages that the flow lists and goes through by its config; None for a run that lists none."""
    stages: list[StageOutcome] = field(default_factory=list)
    pages: dict[str, str] = field(default_factory=dict)
    """Links to the results so far, by purpose, for the person who is asked to approve them."""
    decision: Decision | None = None
    """The promotion decision; None before it, or where promotion is off."""
    started_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    on_stage: Callable[[], None] = lambda: None
    """Called after each stage."""
    watch: RunWatch | None = None
    """Told of each stage that ends; None in a run of one stage for another flow run."""
    live_page: LivePage | None = None
    """Written while the run goes; None where `watch` is."""
    _prefix: str = ""

    @property
    def results(self) -> dict[str, Any]:
        return {stage.name: stage.result for stage in self.stages}

    @contextmanager
    def recorded_as(self, prefix: str) -> Iterator[None]:
        """Record stages of the block under names with `prefix`; facts and shards of those that repeat are added up."""
        self._prefix, outer = prefix, self._prefix
        try:
            yield
        finally:
            self._prefix = outer

    def plans(self, stage: Stage) -> bool:
        return self.plan is None or stage.name in {planned.name for planned in self.plan}

    def check_plan(self) -> None:
        """Raise ValueError for a flow that went through other stages than it lists: its progress showed others."""
        went, plan = {outcome.stage.name for outcome in self.stages}, self.plan or ()
        unlisted = {outcome.stage.name for outcome in self.stages if not outcome.is_of_rounds}
        unlisted -= {stage.name for stage in plan}
        missing = {stage.name for stage in plan if stage.foreseen} - went
        if unlisted or missing:
            raise ValueError(f"the flow {self.name} went through {unlisted or 'no more'} and not through {missing}")

    def record_stage(
        self, stage: Stage, result: Any, *, cached: bool, seconds: float, label: str | None = None, inputs: Any = ()
    ) -> None:
        """Add a finished stage, with the wall time this run spent on it, under its own name or a label.

        A stage that ran without an MLflow run of its own gets a nested one with its metrics. A stage recorded again, in
        the rounds towards a target, keeps one entry: its last result and the seconds of all.
        """
        name = label or self._prefix + stage.name
        earlier = [stage for stage in self.stages if stage.name == name]
        all_cached = cached and all(stage.cached for stage in earlier)
        total = result
        if self._prefix:
            results = [*(stage.result for stage in earlier), result]
            sums: JsonObject = {"facts": add_up([one.facts for one in results])}
            if "shards" in type(result).model_fields:
                sums["shards"] = tuple(shard for one in results for shard in one.shards)
            total = result.model_copy(update=sums)
        all_seconds = seconds + sum(stage.seconds for stage in earlier)
        of_rounds = bool(self._prefix)
        outcome = StageOutcome(stage, name, total, all_cached, all_seconds, tuple(inputs), is_of_rounds=of_rounds)
        self.stages = [*(stage for stage in self.stages if stage.name != name), outcome]
        run_id = result.facts.get("mlflow_run_id")
        if run_id is None and not cached:
            with self.context.open_nested_run(name, {}, started_at=time.time() - seconds) as record:
                record.log_metrics(
                    {key: value for key, value in result.facts.items() if isinstance(value, int | float)}
                )
        if self.watch is not None:
            self.watch.end_stage(name, cached=cached, seconds=outcome.seconds)
        if cached:
            names = ", ".join(stage.name for stage in self.stages if stage.cached)
            # Its MLflow run is below the run that computed it.
            self.record.set_tags({"stillhouse.cached": names, f"stillhouse.{name}.run_id": run_id})
        self.on_stage()


def start_flow(config: DistillConfig | JsonObject, name: str, stages: Sequence[Stage]) -> Run:
    """Return the start a run of a flow that lists `stages`, and its parent run in MLflow, which the caller ends.

    A deployment and the UI give the config as a dict: flows do not validate parameters, since Prefect takes every key
    `$ref`, common in JSON schemas, for one of its blocks. Raises ConfigError if `config` holds a wrong key or value, or
    refreshes a stage that is none of the flow's; StoreError if the store cannot be created, or its object storage
    cannot be reached or refuses.
    """
    if isinstance(config, dict):
        config = given_config(config)
    names = [stage.name for stage in stages]
    if unknown := [name for name in config.runtime.refresh if name not in names]:
        raise ConfigError(
            f"runtime.refresh: {', '.join(unknown)}: no stage of the flow {name}; expected one of {', '.join(names)}"
        )
    find_keys(variables := variables_of(config))
    for suite in config.evaluation.suites if "suite" in names else ():
        source_of(suite)  # A package that is missing is told before a teacher is paid.
    store = ArtifactStore(config.runtime.store, config.runtime.scratch)
    store.make(config.runtime.store_mode)
    if store.remote is not None:
        # A mistyped bucket should fail now, not after hours of work.
        store.check()
    flow_run, deployment = prefect.runtime.flow_run, prefect.runtime.deployment
    tags = {
        "prefect.deployment": f"{name}/{deployment.name}" if deployment.id else None,
        "prefect.flow_run_url": flow_run.ui_url if has_lasting_server() else None,
    }
    record = start_run(
        config.tracking,
        store.root,
        flow_run.name or name,
        params=config.model_dump(mode="json"),
        tags={**_prefect_tags(), **tags},
        shared_url=store.url,
    )
    record.end_orphaned(has_ended)
    if has_lasting_server():
        record.end_orphaned(partial(has_ended, if_deleted=True), suspended=True)
    plan = tuple(stage for stage in stages if stage.when(config))
    context = RunContext(
        run_id=uuid4().hex,
        runtime=config.runtime,
        tracking=config.tracking,
        budget=config.budget,
        mlflow_run_id=record.run_id,
        variables=variables,
        paid_models=tuple(paid_models(config, {stage.name for stage in plan})),
    )
    return Run(name=name, config=config, context=context, record=record, plan=plan)


def _prefect_tags() -> dict[str, str]:
    flow_run = prefect.runtime.flow_run
    if flow_run.id is None:
        return {}
    return {FLOW_RUN_TAG: flow_run.id, "mlflow.source.name": f"flows/{flow_run.flow_name.replace('-', '_')}.py"}
