"""Students as versions of a model in MLflow's registry."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from stillhouse.tracking.params import MAX_TAG_CHARS, shorten

_logger = logging.getLogger(__name__)

_FINGERPRINT_TAG: Final = "student"
"""Short like the other tags: the page shows the start of a name and its value only where there is room left."""


@dataclass(frozen=True, slots=True)
class StudentVersion:
    """A student to register."""

    fingerprint: str
    """Equal weights, equal fingerprint: they become one version however often they are registered."""
    run_id: str | None
    """The MLflow run that holds its files; None when tracking did not take them."""
    artifact_path: str
    """Where among the run's artifacts they are."""
    tags: Mapping[str, str]
    """What it is, for the list of versions: method, base, data."""
    description: str
    """The same in a sentence; plain, since the list shows Markdown as it is written."""


def register_students(client: Any, name: str, alias: str, students: Sequence[StudentVersion]) -> str | None:
    """Makes each student a version of the model called `name`, unless it is one; the version that has `alias` now.

    A version that is there gets the new tags and description. The alias points to the last student, and stays where it
    was when that could not be registered.

    Args:
        client: an `MlflowClient`.
        name: of the model; made if need be.
        alias: moved to the version of the last student.
        students: in the order of their training.

    Raises:
        Exception: anything MLflow raises.
    """
    _make_model(client, name)
    version = None
    for student in students:
        version = _version(client, name, student)
    if version is not None:
        client.set_registered_model_alias(name, alias, version)
    return version


def _make_model(client: Any, name: str) -> None:
    from mlflow.exceptions import MlflowException

    try:
        client.create_registered_model(
            name,
            description="Students trained by Stillhouse. The files of one, its model card among them: "
            f"`mlflow artifacts download -u models:/{name}/VERSION`, or `models:/{name}@ALIAS`.",
        )
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise


def _version(client: Any, name: str, student: StudentVersion) -> str | None:
    """Its version, old or new; None where MLflow does not hold its files."""
    filters = f"name = '{name}' and tags.`{_FINGERPRINT_TAG}` = '{student.fingerprint}'"
    known = max((int(version.version) for version in client.search_model_versions(filters)), default=None)
    tags = {key: shorten(value, MAX_TAG_CHARS) for key, value in student.tags.items()}
    if known is not None:
        client.update_model_version(name, str(known), student.description)
        for key, value in tags.items():
            client.set_model_version_tag(name, str(known), key, value)
        return str(known)
    if student.run_id is None or not client.list_artifacts(student.run_id, student.artifact_path):
        _logger.warning(
            "student %s is not registered as %s: MLflow has no copy of its files", student.fingerprint, name
        )
        return None
    created = client.create_model_version(
        name,
        # Not the place itself: a run is found also after its artifacts were moved.
        f"runs:/{student.run_id}/{student.artifact_path}",
        student.run_id,
        tags={_FINGERPRINT_TAG: student.fingerprint, **tags},
        description=student.description,
    )
    return str(created.version)
