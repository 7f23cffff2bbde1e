"""A config as Prefect's form gives it: fields that few people set are in a group of their section, which folds."""

from typing import Any, Final

from stillhouse.config.root import DistillConfig
from stillhouse.types import JsonObject

MORE: Final = "more"
"""The key of that group."""


def unfolded(config: JsonObject) -> JsonObject:
    """Return a config as a file has it: a group that was opened in the form stands for all fields that it can hold."""
    return {name: _unfolded(name, section) for name, section in config.items()}


def _unfolded(name: str, section: Any) -> Any:
    field = DistillConfig.model_fields.get(name)
    first: tuple[str, ...] = getattr(field.annotation, "form_first", ()) if field else ()
    more = section.get(MORE) if first and isinstance(section, dict) else None
    return {key: section[key] for key in section if key in first} | more if isinstance(more, dict) else section
