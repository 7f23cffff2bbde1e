"""Registration of a run's students in MLflow's model registry."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from stillhouse.chat.refs import model_identity
from stillhouse.tracking.registry import StudentVersion
from stillhouse.training.results.record import StudentRecord, read_record
from stillhouse.training.results.sections import METHODS, public_name
from stillhouse.types import Artifact, JsonObject
from tasks.run.context import Run

_SHOWN_DIGITS: Final = 16
"""Digits of a fingerprint that fit into a line of the registry's page."""


def register(run: Run, students: Mapping[str, Artifact], evaluations: Mapping[str, JsonObject]) -> dict[str, str]:
    """Registers students if `tracking.register_as` names a model; returns the versions that MLflow created, by name.

    The last student gets `tracking.alias`, and its page is added to `run.pages`.

    Args:
        run: the flow run.
        students: by name, in training order.
        evaluations: metrics of `stillhouse.evaluation.measure` by model.
    """
    tracking = run.config.tracking
    if tracking.register_as is None or not students:
        return {}
    described = [student_version(student, evaluations.get(name, {})) for name, student in students.items()]
    versions = run.record.register(tracking.register_as, tracking.alias, described) or []
    registered = {name: version for name, version in zip(students, versions, strict=False) if version is not None}
    last = versions[-1] if versions else None
    page = None if last is None else run.record.pages.model(tracking.register_as, last)
    if page is not None:
        run.pages["model"] = page
    return registered


def student_version(student: Artifact, evaluation: JsonObject) -> StudentVersion:
    """Describes one student for the registry.

    Args:
        student: of a training stage; its files are in the MLflow run of its facts.
        evaluation: its metrics; empty if it was not evaluated.
    """
    record = read_record(Path(student.uri))
    accuracy = evaluation.get("accuracy")
    tags = {
        "method": record.method,
        "base": public_name(record.stages[0].base),
        "parameters": record.config["student"]["parameters"],
        "data": record.data.get("fingerprint", "")[:_SHOWN_DIGITS] or None,
        "accuracy": None if accuracy is None else f"{accuracy:.3f}",
    }
    return StudentVersion(
        fingerprint=model_identity(student.uri).rpartition("@")[2],
        run_id=student.facts.get("mlflow_run_id"),
        artifact_path="student",
        tags={key: value for key, value in tags.items() if value is not None},
        description=_sentence(record, accuracy),
    )


def _sentence(record: StudentRecord, accuracy: float | None) -> str:
    # What distinguishes versions comes first: lists show little more than the first word.
    measured = "" if accuracy is None else f"{accuracy:.1%} right on held-out prompts: "
    methods = ", then ".join(METHODS[stage.method] for stage in record.stages)
    teachers = ", ".join(public_name(teacher) for teacher in record.teachers)
    taught = f" with {teachers} as teacher" if teachers else ""
    return f"{measured}{public_name(record.stages[0].base)} after {methods}{taught}"
