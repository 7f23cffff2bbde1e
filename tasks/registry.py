"""The students of a run as MLflow's model registry lists them."""

from collections.abc import Mapping
from pathlib import Path

from stillhouse.chat.refs import model_identity
from stillhouse.tracking.registry import StudentVersion
from stillhouse.training.results.record import StudentRecord, read_record
from stillhouse.training.results.sections import METHODS, public_name
from stillhouse.types import Artifact, JsonObject
from tasks.run import Run


def register(run: Run, students: Mapping[str, Artifact], evaluations: Mapping[str, JsonObject]) -> str | None:
    """Registers what a run trained, where tracking.register_as names a model; the last student's page in MLflow.

    Args:
        run: whose tracking is used.
        students: by stage, in the order of their training.
        evaluations: figures of `stillhouse.evaluation.measure` by model.
    """
    tracking = run.config.tracking
    if tracking.register_as is None or not students:
        return None
    versions = [student_version(artifact, evaluations.get(name, {})) for name, artifact in students.items()]
    return run.record.register(tracking.register_as, tracking.alias, versions)


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
        "data": record.data.get("fingerprint"),
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
    methods = ", then ".join(METHODS[stage.method] for stage in record.stages)
    told = f"{public_name(record.stages[0].base)} after {methods}"
    if record.teachers:
        told += f" with {', '.join(public_name(teacher) for teacher in record.teachers)} as teacher"
    return told + ("" if accuracy is None else f"; accuracy {accuracy:.1%} on held-out prompts")
