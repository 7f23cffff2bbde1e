"""Promotion: the champion's alias moves to the best student that passes the rule; the reason is published."""

import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from prefect.artifacts import create_markdown_artifact

from stillhouse.evaluation.promotion import Check, Decision, decide
from stillhouse.store.artifacts import artifact_in
from stillhouse.tracking.metadata import MAX_TAG_CHARS, shorten
from stillhouse.tracking.registry import move_alias
from stillhouse.types import Artifact
from tasks.governance.comparison import ComparedModels
from tasks.governance.registry import register
from tasks.run.context import Run
from tasks.run.prefect_api import STUDENT_KEPT, STUDENT_PROMOTED, emit

_TAG: Final = "promotion"
"""Tag of the MLflow run and of each version: the decision and its reason."""
_logger = logging.getLogger("stillhouse.promotion")


def promote(comparison: ComparedModels, run: Run) -> None:
    """Gives the best student the champion's alias in MLflow if it passes the rule; does nothing if promotion is off.

    The reason becomes a tag of the student's version and of the MLflow run, an artifact of the flow run, a part of the
    report, and an event. If the registry does not answer, no student is promoted and the run goes on.
    """
    students = _students(comparison)
    if not run.config.promotion.enabled or not students:
        return
    decision = decide(comparison.lines, list(students), comparison.reference.name, run.config.promotion)
    versions = register(run, students, comparison.evaluations)
    run.decision = _move_alias(decision, versions, comparison, run)
    _logger.info("%s", run.decision.verdict)
    run.record.set_tags({_TAG: run.decision.verdict})
    _tag_versions(run.decision, versions, run)
    create_markdown_artifact(run.decision.verdict + "\n", key="promotion", description="Who is the champion, and why")
    _emit_decision(run.decision, versions, list(students)[-1], run)


def _students(comparison: ComparedModels) -> dict[str, Artifact]:
    """Students trained by Stillhouse, without the reference."""
    artifacts = {
        model.name: artifact_in(Path(model.ref))
        for model in comparison.students
        if model.fingerprint != comparison.reference.fingerprint
    }
    return {name: artifact for name, artifact in artifacts.items() if artifact is not None}


def _move_alias(decision: Decision, versions: Mapping[str, str], comparison: ComparedModels, run: Run) -> Decision:
    """Moves the alias; returns the decision, revised if the registry did not take it."""
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
    texts = {version: shorten(_verdict_on(name, decision), MAX_TAG_CHARS) for name, version in versions.items()}

    def send(client: Any) -> None:
        for version, text in texts.items():
            client.set_model_version_tag(model, version, _TAG, text)

    run.record.ask("reasons", {"model": model, "versions": texts}, send)


def _verdict_on(student: str, decision: Decision) -> str:
    if student == decision.promoted:
        return f"promoted: {decision.reason}"
    reasons = " ".join(check.told for check in decision.checks if check.student == student)
    rival = "" if decision.promoted is None else f" {decision.promoted} was promoted."
    return f"not promoted: {reasons}{rival}"


def _emit_decision(decision: Decision, versions: Mapping[str, str], last: str, run: Run) -> None:
    student = decision.promoted or last
    model = str(run.config.tracking.register_as)
    version = versions.get(student)
    payload = {
        "model": model,
        "student": student,
        "version": version,
        "reference": decision.reference,
        "message": decision.verdict,
        "page": None if version is None else run.record.pages.model(model, version),
    }
    emit(STUDENT_KEPT if decision.promoted is None else STUDENT_PROMOTED, f"stillhouse.model.{model}", payload)
