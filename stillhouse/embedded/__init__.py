"""The embedded default: a verifiable task, its prompts, and a teacher and a student small enough to commit."""

from importlib.resources import files
from pathlib import Path
from typing import Final

from stillhouse.errors import ConfigError

_SHIPPED: Final = ("chat_template.jinja", "prompts.jsonl", "student", "teacher")


def embedded_path(name: str) -> Path:
    """Path of a file or Hugging Face folder shipped in this package."""
    if name not in _SHIPPED:
        raise ConfigError(f"embedded name {name!r} is unknown; expected one of {', '.join(_SHIPPED)}")
    return Path(str(files(__package__))) / name
