"""Students as versions of a model in MLflow's registry. Functions raise whatever MLflow raises."""

import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from stillhouse.tracking.fallback import is_sent
from stillhouse.tracking.metadata import MAX_TAG_CHARS, shorten

_logger = logging.getLogger(__name__)

_FINGERPRINT_TAG: Final = "student"
"""Short like the other tags: the page shows the start of a name and its value only where there is room left."""


CANDIDATE: Final = "candidate"
"""Alias of the student that was registered last."""


@dataclass(frozen=True, slots=True)
class StudentVersion:
    fingerprint: str
    """Hash of the weights: equal ones become one version."""
    run_id: str | None
    """The MLflow run that holds its files; None when tracking did not take them."""
    artifact_path: str
    """Where among the run's artifacts they are."""
    tags: Mapping[str, str]
    """Facts for the list of versions: method, base, data."""
    description: str
    """The same as a sentence without Markdown, which the list would not render."""


@dataclass(frozen=True, slots=True)
class RegisteredStudent:
    """A version of a registered model, as the registry describes it."""

    model: str
    version: str
    fingerprint: str | None
    """Hash of the weights; None if Stillhouse did not register the version."""
    run_id: str
    artifact_path: str
    """Where among the run's artifacts its files are."""


def register_students(client: Any, name: str, alias: str, students: Sequence[StudentVersion]) -> list[str | None]:
    """Register students as versions of the model `name` and return their versions in order.

    An existing version gets the new tags and description. The alias moves to the last student if that is registered.
    The version is None for a student whose files MLflow does not hold.
    """
    with _unless("RESOURCE_ALREADY_EXISTS"):
        client.create_registered_model(
            name,
            description="Students trained by Stillhouse. The files of one, its model card among them: "
            f"`mlflow artifacts download -u models:/{name}/VERSION`, or `models:/{name}@ALIAS`.",
        )
    versions = [_version(client, name, student) for student in students]
    if versions and versions[-1] is not None:
        client.set_registered_model_alias(name, alias, versions[-1])
    return versions


def find_registered(client: Any, model: str, alias_or_version: str) -> RegisteredStudent | None:
    """Find a version by alias or number; None if there is no such model, alias or version."""
    with _unless("RESOURCE_DOES_NOT_EXIST"):
        aliases = client.get_registered_model(model).aliases
        number = str(aliases.get(alias_or_version, alias_or_version))
        if re.fullmatch(r"\d+", number):
            registered = client.get_model_version(model, number)
            return RegisteredStudent(
                model=model,
                version=str(registered.version),
                fingerprint=registered.tags.get(_FINGERPRINT_TAG),
                run_id=registered.run_id,
                artifact_path=registered.source.removeprefix(f"runs:/{registered.run_id}/"),
            )
    return None


def download(client: Any, student: RegisteredStudent, folder: Path, file: str | None = None) -> Path:
    """Download the files of a version, or only `file`, into `folder` and return their path."""
    path = student.artifact_path if file is None else f"{student.artifact_path}/{file}"
    return Path(client.download_artifacts(student.run_id, path, str(folder)))


def move_alias(client: Any, model: str, alias: str, version: str, *, was: str | None) -> bool:
    """Move `alias` from version `was` (None: it had none) to `version`; False if another version has it by now."""
    current = find_registered(client, model, alias)
    if (None if current is None else current.version) not in (was, version):
        return False
    client.set_registered_model_alias(model, alias, version)
    return True


@contextmanager
def _unless(error_code: str) -> Iterator[None]:
    """Leave the block quietly if MLflow answers with this error."""
    from mlflow.exceptions import MlflowException

    try:
        yield
    except MlflowException as error:
        if error.error_code != error_code:
            raise


def _version(client: Any, name: str, student: StudentVersion) -> str | None:
    """Register or update one student; None if MLflow does not hold its files."""
    filters = f"name = '{name}' and tags.`{_FINGERPRINT_TAG}` = '{student.fingerprint}'"
    known = max((int(version.version) for version in client.search_model_versions(filters)), default=None)
    tags = {key: shorten(value, MAX_TAG_CHARS) for key, value in student.tags.items()}
    if known is not None:
        client.update_model_version(name, str(known), student.description)
        for key, value in tags.items():
            client.set_model_version_tag(name, str(known), key, value)
        return str(known)
    if not (is_sent(student.run_id) and client.list_artifacts(student.run_id, student.artifact_path)):
        missing = "student %s is not registered as %s: MLflow has no copy of its files"
        _logger.warning(missing, student.fingerprint, name)
        return None
    created = client.create_model_version(
        name,
        # By run and not by location, which changes if artifacts are moved.
        f"runs:/{student.run_id}/{student.artifact_path}",
        student.run_id,
        tags={_FINGERPRINT_TAG: student.fingerprint, **tags},
        description=student.description,
    )
    return str(created.version)
