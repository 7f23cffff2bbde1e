"""The end of a run: the report page, its figures in MLflow and on the flow run's page, the table to print."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from prefect import get_run_logger
from prefect.exceptions import Pause
from prefect.runtime import flow_run
from pydantic import BaseModel, ConfigDict

from stillhouse.config import DistillConfig
from stillhouse.dataset.report.page import REPORT_FILE
from stillhouse.errors import StillhouseError
from stillhouse.evaluation.comparison import MetricComparison
from stillhouse.inference.budget import forget_budgets
from stillhouse.report import Command, ReportData, SampleTrajectory, StageSummary, write_report
from stillhouse.store.private import private_umask
from stillhouse.store.records import read_jsonl, read_metadata, read_trajectories
from stillhouse.store.runs import RunRecord, write_run_record
from stillhouse.types import Artifact, JsonObject
from stillhouse.verification import verify_trajectory
from tasks.cache.results import artifacts_in
from tasks.governance.comparison import COMPARISON, read_lines
from tasks.governance.registry import register
from tasks.prompts import metadata_file
from tasks.rollouts import Rollouts
from tasks.run.context import Run, StageOutcome, start_flow
from tasks.run.flow_run_page import links_of, relative_path, show_result, show_tracking
from tasks.run.summary import EVALUATION_OF, summary_rows
from tasks.sampling import TRAJECTORIES_FILE

_TRAINING = ("sft", "on_policy")


class Published(BaseModel):
    """What a flow returns: small, and enough to find everything else."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    report: str
    """Path of the report page."""
    dataset: Artifact | None
    students: dict[str, Artifact]
    """Trained students by stage."""
    evaluations: dict[str, JsonObject]
    """Figures by model, from base to teacher."""
    promotion: str | None
    """Who is the champion, and why; None where that was not asked."""
    summary: list[list[str]]
    """Rows of the closing table, under `tasks.run.summary.SUMMARY_COLUMNS`."""
    cached: dict[str, bool]
    """By stage, whether an earlier run's result was used."""
    pages: dict[str, str]
    """What to open or to type to see more, by purpose."""


@contextmanager
def tracked(config: DistillConfig, name: str) -> Iterator[Run]:
    """A run whose MLflow parent run ends as the block does: FINISHED, FAILED, or KILLED on a signal.

    One that fails leaves a report of how far it came and why it ended. One that is suspended goes on later, and its
    MLflow run with it.
    """
    with private_umask(), _tracked(start_flow(config, name)) as run:
        yield run


@contextmanager
def _tracked(run: Run) -> Iterator[Run]:
    run.on_stage = partial(_keep_record, run)
    with run.record:
        run.on_stage()
        show_tracking(run)
        try:
            yield run
        except Pause:
            run.record.suspend()
            raise
        except StillhouseError as error:
            # What ended the run may end the report too, a full disk for one; the first error is the one to tell.
            with suppress(StillhouseError):
                report = _write_report(run, links_of(run), failure=str(error))
                run.record.log_artifact(report, "report")
                get_run_logger().error("%s The report is in %s", error, report)
                run.context.store.share_folder(report.parent)
            raise
        finally:
            forget_budgets(run.context.run_id)


def publish(run: Run) -> Published:
    """Writes the report and hands the run's figures to MLflow and Prefect."""
    results = _results(run)
    evaluations = _evaluations(run)
    students = {name: results[name] for name in _TRAINING if name in results}
    if run.decision is None:
        register(run, students, evaluations)
    pages = {**links_of(run), **{name: run.pages[name] for name in ("model",) if name in run.pages}}
    report = _write_report(run, pages)
    run.context.store.share_folder(report.parent)
    published = Published(
        report=str(report),
        dataset=results.get("dataset"),
        students=students,
        evaluations=evaluations,
        promotion=None if run.decision is None else run.decision.verdict,
        summary=summary_rows(run.stages, evaluations),
        cached={outcome.name: outcome.cached for outcome in run.stages},
        pages={"report": relative_path(report), **_dataset_page(results), **pages},
    )
    _to_mlflow(run, published, results)
    show_result(run, published.summary, published.pages)
    return published


def _dataset_page(results: dict[str, Any]) -> dict[str, str]:
    return {"dataset": relative_path(Path(results["dataset"].uri) / REPORT_FILE)} if "dataset" in results else {}


def _compared(results: dict[str, Any]) -> list[MetricComparison]:
    return read_lines(results[COMPARISON.name]) if COMPARISON.name in results else []


def _results(run: Run) -> dict[str, Any]:
    return {outcome.name: outcome.result for outcome in run.stages}


def _evaluations(run: Run) -> dict[str, JsonObject]:
    return {
        name.removeprefix(EVALUATION_OF): result.facts
        for name, result in _results(run).items()
        if name.startswith(EVALUATION_OF)
    }


def _write_report(run: Run, pages: dict[str, str], failure: str | None = None) -> Path:
    results = _results(run)
    return write_report(
        _folder(run),
        ReportData(
            title=f"Stillhouse: {run.name}",
            created_at=datetime.now(UTC),
            failure=failure,
            config=run.config.model_dump(mode="json"),
            stages=[_stage_summary(outcome) for outcome in run.stages],
            evaluations=[{"name": name, **facts} for name, facts in _evaluations(run).items()],
            comparison=[line.row() for line in _compared(results)],
            reference=results[COMPARISON.name].facts["reference"] if COMPARISON.name in results else None,
            decision=None if run.decision is None else run.decision.verdict,
            training={name: _metrics(results[name]) for name in _TRAINING if name in results},
            dataset=results["dataset"].facts if "dataset" in results else {},
            trajectories=list(_samples(run, results)),
            mlflow_url=run.record.pages.run,
            prefect_url=flow_run.ui_url,
            commands=[
                Command(purpose=purpose, line=line) for purpose, line in {**_dataset_page(results), **pages}.items()
            ],
        ),
    )


def _folder(run: Run) -> Path:
    """Of the run's record and report; two runs that start in one second have two."""
    return run.context.store.root / "reports" / f"{run.started_at:%Y%m%d-%H%M%S}-{run.name}-{run.context.run_id[:4]}"


def _keep_record(run: Run) -> None:
    """Writes by what `stillhouse view` finds the run and its trajectories again, also after it was killed."""
    record = RunRecord(
        flow=run.name,
        created_at=run.started_at.isoformat(),
        mlflow_run_id=run.record.run_id,
        prefect_flow_run_id=flow_run.id,
        prefect_flow_run_name=flow_run.name,
        artifacts={outcome.name: [a.uri for a in _outputs(outcome.result)] for outcome in run.stages},
    )
    write_run_record(_folder(run), record)


def _outputs(result: Any) -> Iterable[Artifact]:
    """What a stage made; the metadata that rollouts carry along are the prompts'."""
    return result.shards if isinstance(result, Rollouts) else artifacts_in(result)


def _stage_summary(outcome: StageOutcome) -> StageSummary:
    result = outcome.result
    first = next(artifacts_in(result))
    return StageSummary(
        name=outcome.name,
        uri=first.uri,
        fingerprint=first.fingerprint,
        cached=outcome.cached,
        seconds=outcome.seconds,
        prompt_tokens=result.facts.get("prompt_tokens"),
        completion_tokens=result.facts.get("completion_tokens", result.facts.get("sampled_tokens")),
        cost_usd=result.facts.get("cost_usd"),
    )


def _metrics(student: Artifact) -> list[JsonObject]:
    return [{"step": row["step"], **row["metrics"]} for row in read_jsonl(Path(student.uri) / "metrics.jsonl")]


def _samples(run: Run, results: dict[str, Any]) -> Iterator[SampleTrajectory]:
    """A few trajectories of each model on the same held-out prompts, so that they can be compared."""
    shown = [name for name in results if name.startswith(EVALUATION_OF)]
    if not shown:
        return
    metadata = read_metadata(metadata_file(results["prompts"].held_out_metadata))
    share = -(-run.config.tracking.num_sample_trajectories // len(shown))
    for name in shown:
        rows = read_trajectories(Path(results[name].uri) / TRAJECTORIES_FILE)
        for trajectory in islice(rows, share):
            yield SampleTrajectory(
                messages=trajectory.messages,
                stop_reason=trajectory.stop_reason,
                verified=verify_trajectory(trajectory, metadata[trajectory.prompt_id]),
                stage=name.removeprefix(EVALUATION_OF),
            )


def _to_mlflow(run: Run, published: Published, results: dict[str, Any]) -> None:
    record = run.record
    for name, facts in published.evaluations.items():
        record.log_metrics({f"{name}/{key}": value for key, value in facts.items() if isinstance(value, int | float)})
    record.log_table([line.row() for line in _compared(results)], "comparison.json")
    for name, result in results.items():
        if isinstance(result, Artifact) and name in {"dataset", COMPARISON.name, *_TRAINING}:
            # Those of the comparison stand beside the model's own, by its name.
            prefix = "" if name == COMPARISON.name else f"{name}/"
            figures = {f"{prefix}{key}": value for key, value in result.facts.items() if isinstance(value, int | float)}
            record.log_metrics(figures)
    samples = [
        {"model": s.stage, "stop_reason": s.stop_reason, "verified": s.verified, "messages": list(s.messages)}
        for s in _samples(run, results)
    ]
    record.log_table(samples, "trajectories.json")
    record.log_artifact(Path(published.report), "report")
