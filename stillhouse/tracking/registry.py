"""Students as versions of a model in MLflow's registry."""

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
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


@dataclass(frozen=True, slots=True)
class RegisteredStudent:
    """A version of a registered model, as the registry describes it."""

    model: str
    version: str
    fingerprint: str | None
    """Of its weights; None for a version that Stillhouse did not register."""
    run_id: str
    artifact_path: str
    """Where among the run's artifacts its files are."""


def register_students(client: Any, name: str, alias: str, students: Sequence[StudentVersion]) -> list[str | None]:
    """Makes each student a version of the model called `name`, unless it is one; the versions in the students' order.

    A version that is there gets the new tags and description. The alias points to the last student, and stays where it
    was when that could not be registered. None stands for a student whose files MLflow does not hold.

    Args:
        client: an `MlflowClient`.
        name: of the model; made if need be.
        alias: moved to the version of the last student.
        students: in the order of their training.

    Raises:
        Exception: anything MLflow raises.
    """
    _make_model(client, name)
    versions = [_version(client, name, student) for student in students]
    if versions and versions[-1] is not None:
        client.set_registered_model_alias(name, alias, versions[-1])
    return versions


def find_registered(client: Any, model: str, alias_or_version: str) -> RegisteredStudent | None:
    """The version under an alias or of a number; None where the registry knows no such model, alias or version.

    Raises:
        Exception: anything else that MLflow raises.
    """
    from mlflow.exceptions import MlflowException

    try:
        aliases = client.get_registered_model(model).aliases
        number = aliases.get(alias_or_version, alias_or_version)
        if not re.fullmatch(r"\d+", str(number)):
            return None
        found = client.get_model_version(model, str(number))
    except MlflowException as error:
        if error.error_code != "RESOURCE_DOES_NOT_EXIST":
            raise
        return None
    return RegisteredStudent(
        model=model,
        version=str(found.version),
        fingerprint=found.tags.get(_FINGERPRINT_TAG),
        run_id=found.run_id,
        artifact_path=found.source.removeprefix(f"runs:/{found.run_id}/"),
    )


def download(client: Any, student: RegisteredStudent, folder: Path, file: str | None = None) -> Path:
    """Copies a version's files, or the one called `file`, into `folder`; where they are then.

    Raises:
        Exception: anything MLflow raises.
    """
    path = student.artifact_path if file is None else f"{student.artifact_path}/{file}"
    return Path(client.download_artifacts(student.run_id, path, str(folder)))


def move_alias(client: Any, model: str, alias: str, version: str, *, was: str | None) -> bool:
    """Points `alias` to `version`, unless another version than `was` has it by now; whether it does then.

    Args:
        client: an `MlflowClient`.
        model: name of the registered model.
        alias: to move.
        version: that is to have it.
        was: the version that had it when the decision was prepared; None where none had.

    Raises:
        Exception: anything MLflow raises.
    """
    found = find_registered(client, model, alias)
    if (None if found is None else found.version) not in (was, version):
        return False
    client.set_registered_model_alias(model, alias, version)
    return True


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
