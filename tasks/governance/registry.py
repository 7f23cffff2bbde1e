"""The students of a run as MLflow's model registry lists them."""

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
"""Of a fingerprint: as many as a line of the page has room for."""


def register(run: Run, students: Mapping[str, Artifact], evaluations: Mapping[str, JsonObject]) -> dict[str, str]:
    """Registers students where tracking.register_as names a model; their versions by name, of those that MLflow took.

    The last student gets `tracking.alias`. The run keeps its page among its `pages`.

    Args:
        run: whose tracking is used.
        students: by name, in the order of their training.
        evaluations: figures of `stillhouse.evaluation.measure` by model.
    """
    tracking = run.config.tracking
    if tracking.register_as is None or not students:
        return {}
    described = [student_version(one, evaluations.get(name, {})) for name, one in students.items()]
    versions = run.record.register(tracking.register_as, tracking.alias, described) or []
    known = {name: version for name, version in zip(students, versions, strict=False) if version is not None}
    last = versions[-1] if versions else None
    page = None if last is None else run.record.pages.model(tracking.register_as, last)
    if page is not None:
        run.pages["model"] = page
    return known


def student_version(student: Artifact, evaluation: JsonObject) -> StudentVersion:
    """How one student is registered.

    Args:
        student: what a training stage made, its files in the MLflow run that its facts name.
        evaluation: its figures; empty where there are none.
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
    # What tells versions apart comes first: the list shows little more than the first word.
    measured = "" if accuracy is None else f"{accuracy:.1%} right on held-out prompts: "
    methods = ", then ".join(METHODS[stage.method] for stage in record.stages)
    teachers = ", ".join(public_name(teacher) for teacher in record.teachers)
    taught = f" with {teachers} as teacher" if teachers else ""
    return f"{measured}{public_name(record.stages[0].base)} after {methods}{taught}"
