"""Students of MLflow's registry as models to train from and to evaluate: the champion and the candidates."""

import json
import logging
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from stillhouse.chat.refs import model_identity
from stillhouse.errors import ConfigError, StillhouseError, StoreError
from stillhouse.store import canonical_json
from stillhouse.store.atomic import replaced_folder, write_atomic
from stillhouse.store.manifest import DamagedManifest, parse_manifest
from stillhouse.tracking.client import connect
from stillhouse.tracking.fallback import brief, is_answer
from stillhouse.tracking.registry import CANDIDATE, RegisteredStudent, download, find_registered
from stillhouse.training.results.adapter import ADAPTER_FILE
from stillhouse.types import Artifact, Model
from tasks.run.context import Run

CHAMPION: Final = "champion"
"""The champion's part in a run."""
PARTS: Final = ("base", CHAMPION, "teacher")
"""Names of the models in reports that are no candidates."""

_REGISTERED: Final = re.compile(r"models:/(?P<model>[^/@]+)(?:/(?P<version>\d+)|@(?P<alias>[\w-]+))")
_UNUSUAL: Final = re.compile(r"[^\w.-]+")
"""Characters that MLflow refuses in the names of metrics."""
_logger = logging.getLogger("stillhouse.champion")


class _NoAnswer(StoreError):
    """MLflow cannot be reached now, which says nothing about the versions that it holds."""


@dataclass(frozen=True, slots=True)
class Registered:
    """A version of the registry whose files are on this machine."""

    model: Model
    version: str


def find_champion(run: Run) -> Registered | None:
    """Return the champion; None if there is none yet, or if the config has no use for it.

    While MLflow does not answer, it is the last champion known to this store: a night's training is worth more than the
    certainty that nobody promoted another since. Raises StoreError if MLflow refuses, or names one that cannot be
    loaded.
    """
    promotion = run.config.promotion
    if not (promotion.enabled or promotion.start_from_champion):
        return None
    name = run.config.tracking.register_as
    assert name is not None
    known_file = run.context.store.root / "registered" / f"{name}@{promotion.alias}.json"
    try:
        student = _look_up(name, promotion.alias, run)
        if student is None:
            _logger.info("%s has no version called %s yet", name, promotion.alias)
            return None
        model = _load(CHAMPION, student, run)
    except _NoAnswer as outage:
        return _last_known(known_file, outage, run)
    # Relative: the store may be moved.
    folder = Path(model.ref).relative_to(run.context.store.root).as_posix()
    write_atomic(known_file, canonical_json({"folder": folder, "version": student.version}))
    return Registered(model, student.version)


def start_of_training(base: Model, champion: Registered | None, run: Run) -> Model:
    """Return the champion if the config starts from it and there is one, else the base.

    Raises ConfigError if an adapter is to be trained on a champion that is a whole model.
    """
    if champion is None or not run.config.promotion.start_from_champion:
        return base
    parameters = run.config.student.parameters
    # An adapter names its base, and this one would be a folder of this machine.
    if parameters != "full" and not (Path(champion.model.ref) / ADAPTER_FILE).is_file():
        raise ConfigError(
            f"student.parameters = {parameters!r}: the champion, version {champion.version}, is a whole model, and an "
            "adapter trained on it could be loaded on this machine alone. Set student.parameters to `full`, or "
            "promotion.start_from_champion to false"
        )
    _logger.info("training starts from the champion, version %s", champion.version)
    return champion.model


def candidates(run: Run) -> list[Model]:
    """Return the models of `promotion.candidates`; without any, the registered student `candidate`.

    Raises ConfigError if a ref names no model, or the registry has no such version; StoreError if a version's files
    cannot be downloaded.
    """
    promotion, tracking = run.config.promotion, run.config.tracking
    if not promotion.candidates and promotion.enabled:
        newest = _look_up(str(tracking.register_as), CANDIDATE, run)
        return [] if newest is None else [_load(f"version {newest.version}", newest, run)]
    models = [_candidate(ref, run) for ref in promotion.candidates]
    for name, count in Counter(model.name for model in models).items():
        if count > 1 or name in PARTS:
            raise ConfigError(
                f"promotion.candidates: the name {name!r} would mean several models in the report; expected candidates "
                f"of different last names, and none of {', '.join(PARTS)}"
            )
    return models


def _candidate(ref: str, run: Run) -> Model:
    parts = _REGISTERED.fullmatch(ref)
    if parts is None:
        return Model(name=_UNUSUAL.sub("-", Path(ref).name), ref=ref, fingerprint=model_identity(ref))
    student = _look_up(parts["model"], parts["version"] or parts["alias"], run)
    if student is None:
        raise ConfigError(
            f"promotion.candidates: {ref!r}: MLflow at {run.record.uri} has no such version; expected "
            "models:/NAME/VERSION or models:/NAME@ALIAS of its model registry, a folder or a Hugging Face id"
        )
    return _load(f"version {student.version}", student, run)


def _look_up(name: str, alias_or_version: str, run: Run) -> RegisteredStudent | None:
    try:
        return find_registered(connect(str(run.record.uri)), name, alias_or_version)
    # Whatever MLflow, its database driver or HTTP stack raises.
    except Exception as error:
        kind = StoreError if is_answer(error, str(run.record.uri)) else _NoAnswer
        raise kind(
            f"models:/{name}: {alias_or_version!r} cannot be looked up in MLflow at {run.record.uri}: {brief(error)}. "
            "Mend that, then run the same command again: what finished is kept"
        ) from error


def _last_known(known_file: Path, outage: _NoAnswer, run: Run) -> Registered | None:
    if not known_file.exists():
        _logger.warning("%s. This store has known no champion: going on without one", outage)
        return None
    try:
        known = json.loads(known_file.read_bytes())
        folder, version = str(run.context.store.root / known["folder"]), known["version"]
        model = Model(name=CHAMPION, ref=folder, fingerprint=model_identity(folder))
    except (OSError, ValueError, KeyError, StillhouseError) as error:
        raise StoreError(f"{outage}. The champion known last, in {known_file}, cannot be loaded: {error}") from error
    _logger.warning("%s. Taking version %s, the champion known last", outage, version)
    return Registered(model, version)


def _load(name: str, student: RegisteredStudent, run: Run) -> Model:
    """Return the student as a model: from the store if a run of it trained the student, else from a copy."""
    store = run.context.store
    with TemporaryDirectory() as scratch:
        manifest = _download(student, Path(scratch), run, "manifest.json").read_bytes()
    try:
        trained = store.here(parse_manifest(manifest).artifact)
    except DamagedManifest as error:
        raise _unusable(student, f"its manifest.json is none of Stillhouse: {error}") from error
    if store.obtain(trained) is None and _weights(trained) == student.fingerprint:
        return Model(name=name, ref=trained.uri, fingerprint=model_identity(trained.uri))
    # Not in the trained artifact's own place, which may hold other weights of the same training.
    place = store.root / "registered" / str(student.fingerprint) / Path(trained.uri).name
    copy = trained.model_copy(update={"uri": str(place)})
    if store.problem(copy) is not None:
        with replaced_folder(place.parent) as work:
            _download(student, work, run).rename(work / place.name)
    if (problem := store.problem(copy)) is not None:
        raise _unusable(student, f"MLflow gave files that do not agree with their manifest: {problem}")
    if _weights(copy) != student.fingerprint:
        raise _unusable(student, f"{place} holds weights {_weights(copy)}, not {student.fingerprint}")
    store.share(copy)
    return Model(name=name, ref=copy.uri, fingerprint=model_identity(copy.uri))


def _weights(student: Artifact) -> str:
    return model_identity(student.uri).rpartition("@")[2]


def _download(student: RegisteredStudent, folder: Path, run: Run, file: str | None = None) -> Path:
    try:
        return download(connect(str(run.record.uri)), student, folder, file)
    except Exception as error:
        raise _unusable(student, f"its files cannot be loaded: {brief(error)}") from error


def _unusable(student: RegisteredStudent, problem: str) -> StoreError:
    return StoreError(
        f"models:/{student.model}/{student.version}: {problem}. Expected the student that a run registered, below "
        f"{student.artifact_path!r} in the artifacts of run {student.run_id} of MLflow; mend these, or move the alias "
        "to another version, then run the same command again: what finished is kept"
    )
