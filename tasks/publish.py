"""The end of a run: the report page, its figures in MLflow and on the flow run's page, the table to print."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Final, cast

from prefect import get_run_logger
from prefect.events import emit_event
from prefect.exceptions import Pause
from prefect.runtime import flow_run
from prefect.states import Completed

from stillhouse.config import DistillConfig
from stillhouse.config.suites import SUITE_PREFIX
from stillhouse.dataset.report.page import REPORT_FILE
from stillhouse.errors import StillhouseError
from stillhouse.inference.budget import forget_budgets
from stillhouse.progress.text import duration
from stillhouse.report import ReportData, SampleTrajectory, StageSummary, write_report
from stillhouse.report.conversation import comparison
from stillhouse.report.live import LiveData
from stillhouse.report.page import FILE_NAME
from stillhouse.store import digest
from stillhouse.store.private import private_umask
from stillhouse.store.records import read_jsonl
from stillhouse.store.runs import TRAINED, RunRecord, earlier_seconds, write_run_record
from stillhouse.types import Artifact, FrozenModel, JsonObject, PromptMetadata, Trajectory
from stillhouse.verification import examine_trajectory
from tasks.assets import outputs_of, show_asset
from tasks.cache.results import artifacts_in
from tasks.conversations import log_conversations, sampled
from tasks.governance.comparison import COMPARISON, read_lines
from tasks.governance.promotion import register
from tasks.run.context import Run, StageOutcome, start_flow
from tasks.run.flow_run_page import links_of, relative_path, show_result, show_tracking
from tasks.run.interruption import pause_prevails
from tasks.run.live_page import LivePage
from tasks.run.prefect_api import RUN_LEFT
from tasks.run.progress import progress, shown_by
from tasks.run.progress_artifact import ProgressArtifacts
from tasks.run.stage import EVALUATION_OF, Stage, planned_names
from tasks.run.summary import headline, result_of, summary_rows
from tasks.run.watch import RunWatch
from tasks.server.outages import wait_out_outages
from tasks.server.temporary_server import has_lasting_server

_logger = logging.getLogger("stillhouse.run")
_NUM_SAMPLES: Final = 20
"""Trajectories in the report, shared among the models compared."""


class Published(FrozenModel):
    """The result of a flow: small, and enough to find everything else."""

    report: str
    dataset: Artifact | None
    students: dict[str, Artifact]
    evaluations: dict[str, JsonObject]
    """Metrics by model, from base to teacher."""
    promotion: str | None
    """The promotion decision and its reason; None where promotion is off."""
    summary: list[list[str]]
    """Rows of the closing table, under `tasks.run.summary.SUMMARY_COLUMNS`."""
    cached: dict[str, bool]
    """By stage, whether an earlier run's result was used."""
    pages: dict[str, str]
    """Pages to open and commands to type, by purpose."""


@contextmanager
def tracked(config: DistillConfig, name: str, stages: Sequence[Stage]) -> Iterator[Run]:
    """Yield a run of a flow that lists `stages`; its MLflow parent run ends FINISHED, FAILED, or KILLED on a signal.

    A failed run leaves a report of the stages so far and the reason. A suspended one is continued later, and its MLflow
    run with it.
    """
    if has_lasting_server():
        wait_out_outages()
    with private_umask(), pause_prevails():
        progress().say("opening the store and MLflow")
        run = start_flow(config, name, stages)
        run.on_stage = partial(_keep_record, run)
        watch, run.live_page = _watch(run)
        run.watch, shown = watch, ProgressArtifacts(run.record, lambda: watch.bars)
        with run.live_page, shown_by(watch), run.record, shown:
            run.on_stage()
            show_tracking(run)
            try:
                with pause_prevails():
                    yield run
            except Pause:
                run.record.suspend()
                get_run_logger().info("suspended: everything is kept, and Resume on the run's page goes on from there")
                emit_event(RUN_LEFT, resource={"prefect.resource.id": f"prefect.flow-run.{flow_run.id}"})
                raise
            except StillhouseError as error:
                # The report may fail for the same reason, such as a full disk; the first error is the one to raise.
                with suppress(StillhouseError):
                    report = _write_report(run, links_of(run), _sample_trajectories(run), failure=str(error))
                    run.record.log_artifact(report, "report")
                    get_run_logger().error("%s. The report is in %s", str(error).removesuffix("."), report)
                    run.context.store.share_folder(report.parent)
                raise
            finally:
                forget_budgets(run.context.run_id)


def _watch(run: Run) -> tuple[RunWatch, LivePage]:
    """Return what shows the run while it goes: on the terminal, and on a page in the folder of its report."""
    folder, config = _folder(run), run.config
    earlier = earlier_seconds(run.context.store.root, run.name, _subject(config))
    page = (folder / FILE_NAME).absolute().as_uri()
    watch = RunWatch(planned_names(run.plan or ()), progress(), earlier, page)

    def data() -> LiveData:
        trajectories = [
            SampleTrajectory(
                messages=trajectory.messages,
                stop_reason=trajectory.stop_reason,
                verified=None,
                stage={"rollouts": "teacher"}.get(stage, stage.removeprefix("evaluate ")),
            )
            for stage, trajectory in watch.last_trajectories
        ]
        return LiveData(
            f"Stillhouse: {run.name}", datetime.now(UTC), watch.state, watch.bars, watch.curves, trajectories
        )

    return watch, LivePage(folder, data, lambda: [row for _, row in watch.trajectories], run.context.store)


def _subject(config: DistillConfig) -> str:
    """Return the digest of what a run works on: times of stages are comparable between runs of one subject."""
    return digest([config.prompts.identity(), config.teacher.model, config.student.model])


def publish(run: Run) -> Published:
    """Write the report and publish the run's metrics in MLflow and Prefect."""
    progress().say("writing the report")
    results = run.results
    evaluations = _evaluations(run)
    students = {name: results[name] for name in TRAINED if name in results}
    if run.decision is None:
        register(run, students, evaluations)
    pages = links_of(run)
    if "model" in run.pages:
        pages["model"] = run.pages["model"]
    report = _write_report(run, pages, _sample_trajectories(run))
    progress().say("saving figures in MLflow")
    run.context.store.share_folder(report.parent)
    published = Published(
        report=str(report),
        dataset=results.get("dataset"),
        students=students,
        evaluations=evaluations,
        promotion=None if run.decision is None else run.decision.verdict,
        summary=summary_rows(run.stages, evaluations),
        cached={outcome.name: outcome.cached for outcome in run.stages},
        pages={"report": relative_path(report), **_dataset_page(run), **pages},
    )
    _log_to_mlflow(run, published)
    show_result(run, published.summary, published.pages)
    run.check_plan()
    # Prefect gives callers of the flow the data alone.
    return cast(Published, Completed(message=headline(run.stages, evaluations), data=published))


def _dataset_page(run: Run) -> dict[str, str]:
    dataset = run.results.get("dataset")
    return {} if dataset is None else {"dataset": relative_path(Path(dataset.uri) / REPORT_FILE)}


def _comparison_rows(run: Run) -> list[JsonObject]:
    comparison = run.results.get(COMPARISON.name)
    return [] if comparison is None else [line.row() for line in read_lines(comparison)]


def _evaluations(run: Run) -> dict[str, JsonObject]:
    return {
        name.removeprefix(EVALUATION_OF): result.facts
        for name, result in run.results.items()
        if name.startswith(EVALUATION_OF)
    }


def _write_report(
    run: Run, pages: dict[str, str], trajectories: Sequence[SampleTrajectory], failure: str | None = None
) -> Path:
    if run.live_page is not None:
        run.live_page.stop()
    results = run.results
    links = {**_dataset_page(run), **pages}
    return write_report(
        _folder(run),
        ReportData(
            title=f"Stillhouse: {run.name}",
            created_at=datetime.now(UTC),
            failure=failure,
            config=run.config.model_dump(mode="json"),
            stages=[_stage_summary(outcome, run.config) for outcome in run.stages],
            evaluations=[{"name": name, **facts} for name, facts in _evaluations(run).items()],
            comparison=_comparison_rows(run),
            reference=results[COMPARISON.name].facts["reference"] if COMPARISON.name in results else None,
            decision=None if run.decision is None else run.decision.verdict,
            training={name: _training_metrics(results[name]) for name in TRAINED if name in results},
            dataset=results["dataset"].facts if "dataset" in results else {},
            trajectories=list(trajectories),
            mlflow_url=run.record.pages.run,
            # The pages of a temporary server end with the run.
            prefect_url=flow_run.ui_url if has_lasting_server() else None,
            commands=links,
        ),
    )


def _folder(run: Run) -> Path:
    """Return the folder of the run's record and report, different for two runs that start in one second."""
    return run.context.store.root / "reports" / f"{run.started_at:%Y%m%d-%H%M%S}-{run.name}-{run.context.run_id[:4]}"


def _keep_record(run: Run) -> None:
    """Write the record by which `stillhouse view` finds the run and its trajectories, also after it was killed."""
    artifacts = {}
    for outcome in run.stages:
        artifacts[outcome.name] = [artifact.uri for artifact in outputs_of(outcome.result)]
    if run.stages:
        _tell(run.stages[-1])
        show_asset(run.stages[-1], run)
    record = RunRecord(
        flow=run.name,
        created_at=run.started_at.isoformat(),
        mlflow_run_id=run.record.run_id,
        prefect_flow_run_id=flow_run.id,
        prefect_flow_run_name=flow_run.name,
        artifacts=artifacts,
        subject=_subject(run.config),
        seconds={outcome.name: outcome.seconds for outcome in run.stages if not outcome.cached},
        config=run.config.model_dump(mode="json"),
    )
    write_run_record(_folder(run), record)


def _tell(outcome: StageOutcome) -> None:
    how = f"in {duration(outcome.seconds)}"
    if outcome.cached:
        how = "from the store"
        for artifact in islice(artifacts_in(outcome.result), 1):
            with suppress(OSError):
                made = datetime.fromtimestamp(Path(artifact.uri).stat().st_mtime, UTC)
                how += f", made on {made:%d %b %H:%M} UTC"
    _logger.info("%s: %s, %s", outcome.name, result_of(outcome), how)


def _stage_summary(outcome: StageOutcome, config: DistillConfig) -> StageSummary:
    facts = outcome.result.facts
    is_student = outcome.name.startswith(EVALUATION_OF) and outcome.name != f"{EVALUATION_OF}teacher"
    is_teacher = outcome.name in ("rollouts", f"{EVALUATION_OF}teacher")
    return StageSummary(
        name=outcome.name,
        artifact=next(artifacts_in(outcome.result)),
        cached=outcome.cached,
        seconds=outcome.seconds,
        facts=facts,
        is_local=not facts.get("cost_usd") and (is_student or (is_teacher and config.teacher.base_url is None)),
    )


def _training_metrics(student: Artifact) -> list[JsonObject]:
    return [{"step": row["step"], **row["metrics"]} for row in read_jsonl(Path(student.uri) / "metrics.jsonl")]


def _sample_trajectories(run: Run) -> list[SampleTrajectory]:
    """Return a few trajectories of each model on the same held-out prompts, so that they can be compared."""
    evaluations = {name: result for name, result in run.results.items() if name.startswith(EVALUATION_OF)}
    num_each = -(-_NUM_SAMPLES // max(1, len(evaluations)))
    return [
        _sample(trajectory, metadata, name.removeprefix(EVALUATION_OF))
        for name, evaluation in evaluations.items()
        for trajectory, metadata in sampled([evaluation], run.results["prompts"].held_out_metadata, num_each)
    ]


def _sample(trajectory: Trajectory, metadata: PromptMetadata | None, model: str) -> SampleTrajectory:
    verdict = examine_trajectory(trajectory, metadata)
    return SampleTrajectory(
        messages=trajectory.messages,
        stop_reason=trajectory.stop_reason,
        verified=verdict.verified,
        comparison=comparison({**verdict.columns, "expected_answer": metadata and metadata.expected_answer}),
        stage=model,
        prompt_id=f"{trajectory.prompt_id} {trajectory.sample_index}",
    )


def _log_to_mlflow(run: Run, published: Published) -> None:
    record = run.record
    for model, facts in published.evaluations.items():
        record.log_metrics(_numbers(facts, f"{model}/"))
    record.log_table(_comparison_rows(run), "comparison.json", whole=True)
    for name, result in run.results.items():
        if name in ("dataset", *TRAINED):
            record.log_metrics(_numbers(result.facts, f"{name}/"))
        elif name == COMPARISON.name:
            # Its facts already start with the names of models.
            record.log_metrics(_numbers(result.facts, ""))
        elif name.startswith(SUITE_PREFIX):
            figure, _, model = name.rpartition(" of ")
            record.log_metrics(_numbers(result.facts, f"{model}/{figure}/"))
    record.log_artifact(Path(published.report), "report")
    log_conversations(run)


def _numbers(facts: JsonObject, prefix: str) -> dict[str, Any]:
    return {f"{prefix}{name}": value for name, value in facts.items() if isinstance(value, int | float)}
