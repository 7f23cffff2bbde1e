"""What a training depends on, compared between a checkpoint and the training that finds it."""

from pathlib import Path
from typing import Any

from stillhouse.errors import TrainingError
from stillhouse.types import JsonObject


def refuse_other_identity(path: Path, seen: JsonObject, expected: JsonObject) -> None:
    """Makes sure that the checkpoint at `path` is of this training.

    Raises:
        TrainingError: it is of another one; the differences are listed.
    """
    flat_seen, flat_expected = _flatten(seen), _flatten(expected)
    differences = [
        f"{key}: {flat_seen.get(key)!r} in the checkpoint, {flat_expected.get(key)!r} now"
        for key in sorted(flat_seen.keys() | flat_expected.keys())
        if flat_seen.get(key) != flat_expected.get(key)
    ]
    if differences:
        raise TrainingError(
            f"{path}: this checkpoint belongs to another training: {'; '.join(differences)}. Restore those values to "
            f"continue it, or delete {path.parent} to start anew"
        )


def _flatten(value: JsonObject, prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, entry in value.items():
        if isinstance(entry, dict):
            flat |= _flatten(entry, f"{prefix}{key}.")
        else:
            flat[prefix + key] = entry
    return flat
