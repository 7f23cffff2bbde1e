"""Registration of a run's students in MLflow's model registry, and promotion of the best that passes the rule."""

import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from prefect.artifacts import create_markdown_artifact
from prefect.events import emit_event

from stillhouse.chat.refs import model_identity
from stillhouse.evaluation.promotion import Check, Decision, decide
from stillhouse.store.artifacts import artifact_in
from stillhouse.tracking.metadata import MAX_TAG_CHARS, shorten
from stillhouse.tracking.registry import CANDIDATE, StudentVersion, move_alias
from stillhouse.training.results.record import read_record
from stillhouse.training.results.sections import METHODS, public_name
from stillhouse.types import Artifact, JsonObject
from tasks.governance.comparison import ComparedModels
from tasks.run.context import Run
from tasks.run.prefect_api import STUDENT_KEPT, STUDENT_PROMOTED

_TAG: Final = "promotion"
"""Tag of the MLflow run and of each version: the decision and its reason."""
_SHOWN_DIGITS: Final = 16
"""Digits of a fingerprint that fit into a line of the registry's page."""
_logger = logging.getLogger("stillhouse.promotion")


def promote(comparison: ComparedModels, run: Run) -> None:
    """Give the best student the champion's alias in MLflow if it passes the rule; do nothing if promotion is off.

    The reason becomes a tag of the student's version and of the MLflow run, an artifact of the flow run, a part of the
    report, and an event. If the registry does not answer, no student is promoted and the run goes on.
    """
    reference = comparison.reference
    # Only students trained by Stillhouse have an artifact.
    artifacts = {
        model.name: artifact_in(Path(model.ref))
        for model in comparison.students
        if model.fingerprint != reference.fingerprint
    }
    students = {name: artifact for name, artifact in artifacts.items() if artifact is not None}
    if not run.config.promotion.enabled or not students:
        return
    decision = decide(comparison.lines, list(students), reference.name, run.config.promotion)
    versions = register(run, students, comparison.evaluations)
    run.decision = decision = _move_alias(decision, versions, comparison, run)
    _logger.info("%s", decision.verdict)
    run.record.set_tags({_TAG: decision.verdict})
    _tag_versions(decision, versions, run)
    create_markdown_artifact(decision.verdict + "\n", key="promotion", description="Who is the champion, and why")
    model, student = str(run.config.tracking.register_as), decision.promoted or list(students)[-1]
    version = versions.get(student)
    emit_event(
        STUDENT_KEPT if decision.promoted is None else STUDENT_PROMOTED,
        resource={"prefect.resource.id": f"stillhouse.model.{model}"},
        payload={
            "model": model,
            "student": student,
            "version": version,
            "reference": decision.reference,
            "message": decision.verdict,
            "page": None if version is None else run.record.pages.model(model, version),
        },
    )


def _move_alias(decision: Decision, versions: Mapping[str, str], comparison: ComparedModels, run: Run) -> Decision:
    """Move the alias; return the decision, revised if the registry did not take it."""
    student = decision.promoted
    if student is None:
        return decision
    model, alias = str(run.config.tracking.register_as), run.config.promotion.alias
    version = versions.get(student)
    was = None if comparison.champion is None else comparison.champion.version
    moved = version is not None and run.record.ask(
        "promotion",
        {"model": model, "alias": alias, "version": version},
        lambda client: move_alias(client, model, alias, version, was=was),
    )
    if moved:
        return decision
    obstacle = (
        f"another version was given the alias {alias} while this one was measured"
        if moved is False and version is not None
        else "MLflow did not take it"
    )
    reason = f"It passed, but {obstacle}."
    checks = (*decision.checks, Check(student, False, reason))
    return replace(decision, promoted=None, checks=checks, reason=f"{decision.reason} {reason}")


def _tag_versions(decision: Decision, versions: Mapping[str, str], run: Run) -> None:
    model = str(run.config.tracking.register_as)
    rival = "" if decision.promoted is None else f" {decision.promoted} was promoted."
    verdicts = {}
    for student, version in versions.items():
        reasons = " ".join(check.finding for check in decision.checks if check.student == student)
        is_promoted = student == decision.promoted
        verdict = f"promoted: {decision.reason}" if is_promoted else f"not promoted: {reasons}{rival}"
        verdicts[version] = shorten(verdict, MAX_TAG_CHARS)

    def send(client: Any) -> None:
        for version, verdict in verdicts.items():
            client.set_model_version_tag(model, version, _TAG, verdict)

    run.record.ask("reasons", {"model": model, "versions": verdicts}, send)


def register(run: Run, students: Mapping[str, Artifact], evaluations: Mapping[str, JsonObject]) -> dict[str, str]:
    """Register students if `tracking.register_as` names a model; return the versions that MLflow created, by name.

    The students come in training order: the last gets the alias `candidate`, and its page is added to `run.pages`.
    """
    tracking = run.config.tracking
    if tracking.register_as is None or not students:
        return {}
    described = [student_version(student, evaluations.get(name, {})) for name, student in students.items()]
    versions = run.record.register(tracking.register_as, CANDIDATE, described) or []
    if versions and versions[-1] is not None:
        page = run.record.pages.model(tracking.register_as, versions[-1])
        if page is not None:
            run.pages["model"] = page
    return {name: version for name, version in zip(students, versions, strict=False) if version is not None}


def student_version(student: Artifact, evaluation: JsonObject) -> StudentVersion:
    """Describe a trained student for the registry, with its metrics, which may be empty."""
    record = read_record(Path(student.uri))
    base = public_name(record.stages[0].base)
    accuracy = evaluation.get("accuracy")
    tags = {
        "method": record.method,
        "base": base,
        "parameters": record.config["student"]["parameters"],
        "data": record.data.get("fingerprint", "")[:_SHOWN_DIGITS] or None,
        "accuracy": None if accuracy is None else f"{accuracy:.3f}",
    }
    # What distinguishes versions comes first: lists show little more than the first word.
    measured = "" if accuracy is None else f"{accuracy:.1%} right on held-out prompts: "
    methods = ", then ".join(METHODS[stage.method] for stage in record.stages)
    teachers = ", ".join(public_name(teacher) for teacher in record.teachers)
    return StudentVersion(
        fingerprint=model_identity(student.uri).rpartition("@")[2],
        run_id=student.facts.get("mlflow_run_id"),
        artifact_path="student",
        tags={key: value for key, value in tags.items() if value is not None},
        description=f"{measured}{base} after {methods}" + (f" with {teachers} as teacher" if teachers else ""),
    )
