"""The embedded default: a verifiable task, its prompts, and a teacher and a student small enough to commit."""

from importlib.resources import files
from pathlib import Path
from typing import Final

from stillhouse.errors import ConfigError

_SHIPPED: Final = ("chat_template.jinja", "prompts.jsonl", "student", "teacher")


def embedded_path(name: str) -> Path:
    """Path of a folder or file shipped in this package.

    Args:
        name: `teacher` or `student` (complete Hugging Face folders), `prompts.jsonl`, or `chat_template.jinja`.

    Raises:
        ConfigError: If nothing of that name is shipped.
    """
    if name not in _SHIPPED:
        known = ", ".join(_SHIPPED)
        raise ConfigError(f"embedded name {name!r} is unknown; expected one of {known}")
    return Path(str(files(__package__))) / name
