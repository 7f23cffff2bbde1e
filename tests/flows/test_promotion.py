"""Promotion of a student that passed the rule, on a real registry and with none."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prefect import flow

from stillhouse.chat.refs import model_identity
from stillhouse.config import DistillConfig, PromotionConfig, RuntimeConfig, TrackingConfig
from stillhouse.evaluation.comparison import MetricComparison
from stillhouse.evaluation.paired import Difference
from stillhouse.store import ArtifactStore
from stillhouse.tracking import start_run
from stillhouse.tracking.client import connect, default_uri
from stillhouse.tracking.registry import StudentVersion
from stillhouse.training.results.record import StudentRecord
from stillhouse.types import JsonObject, Model
from tasks.governance.comparison import ComparedModels
from tasks.governance.promotion import promote
from tasks.run.context import Run, RunContext

BASE = Model(name="base", ref="embedded:student", fingerprint="base@0")
BETTER = MetricComparison("sft", "accuracy", None, Difference(200, 0.7, 0.6, 0.1, 0.05, 0.15, 0.001, 0.999, "mcnemar"))
SETTINGS = {"model": "embedded:student", "parameters": "full", "dtype": "float32"}


@pytest.fixture
def promoted(tmp_path: Path) -> Callable[..., Run]:
    """Return the run in which `lines` were seen of one student, after it decided."""

    def decide(uri: str, lines: list[MetricComparison]) -> Run:
        tracking = TrackingConfig(uri=uri, register_as="small")
        config = DistillConfig(
            tracking=tracking, promotion=PromotionConfig(enabled=True), runtime=RuntimeConfig(store=str(tmp_path))
        )
        record = start_run(tracking, tmp_path, "distill")

        def fill(folder: Path) -> tuple[int, JsonObject]:
            (folder / "model.safetensors").write_bytes(b"weights")
            about: dict[str, Any] = {"student_ref": "embedded:student", "student": SETTINGS, "sft": {}}
            StudentRecord(
                method="sft", base="embedded:student", started_from="embedded:student", config=about, facts={}
            ).write(folder)
            return 0, {"mlflow_run_id": record.run_id}

        artifact = ArtifactStore(tmp_path).write("sft", "0123456789abcdef", fill)
        record.log_artifacts(Path(artifact.uri), "student")
        student = Model(name="sft", ref=artifact.uri, fingerprint=model_identity(artifact.uri))
        context = RunContext(
            run_id="r", runtime=config.runtime, tracking=tracking, budget=config.budget, mlflow_run_id=record.run_id
        )
        run = Run(name="distill", config=config, context=context, record=record)
        comparison = ComparedModels(BASE, None, [student], lines, {"sft": {"accuracy": 0.7}})
        flow(name="promote", validate_parameters=False)(promote)(comparison, run)
        record.finish()
        return run

    return decide


@pytest.mark.slow
def test_an_alias_that_another_run_moved_meanwhile_stays_where_it_is(promoted, tmp_path: Path) -> None:
    uri = default_uri(tmp_path)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "README.md").write_text("# Another student\n")
    with start_run(TrackingConfig(uri=uri), tmp_path, "other") as other:
        other.log_artifacts(tmp_path / "other", "student")
        other.register("small", "champion", [StudentVersion("other", other.run_id, "student", {}, "another")])
    run = promoted(uri, [BETTER])
    assert run.decision is not None
    assert run.decision.promoted is None
    assert "It passed, but another version was given the alias champion while" in run.decision.reason
    assert int(connect(uri).get_model_version_by_alias("small", "champion").version) == 1
    assert connect(uri).get_model_version("small", "2").tags["promotion"] == f"not promoted: {run.decision.reason}"


@pytest.mark.slow
def test_without_mlflow_nobody_is_promoted_and_the_run_goes_on(promoted) -> None:
    run = promoted("http://127.0.0.1:9", [BETTER])
    assert run.decision is not None
    assert run.decision.promoted is None
    assert run.decision.verdict.endswith("It passed, but MLflow did not take it.")


def test_a_student_that_shares_no_prompt_with_the_reference_is_kept_out(promoted) -> None:
    run = promoted("http://127.0.0.1:9", [])
    assert run.decision is not None
    assert "have 0 held-out prompts with accuracy in common" in run.decision.reason
