"""The embedded default: a verifiable task, its prompts, and a teacher and a student small enough to commit."""

import difflib
from importlib.resources import files
from pathlib import Path
from typing import Final

from stillhouse.errors import ConfigError

EMBEDDED_MODELS: Final = ("embedded:teacher", "embedded:student")

_SHIPPED: Final = ("chat_template.jinja", "prompts.jsonl", "student", "teacher")


def embedded_path(name: str) -> Path:
    """Return the path of a file or Hugging Face folder shipped in this package."""
    if name not in _SHIPPED:
        raise ConfigError(f"embedded name {name!r} is unknown; expected one of {', '.join(_SHIPPED)}")
    return Path(str(files(__package__))) / name


def unknown_embedded_model(ref: str) -> str | None:
    """Return what is wrong with a ref `embedded:NAME`, and what may have been meant; None for any other ref."""
    if not ref.startswith("embedded:") or ref in EMBEDDED_MODELS:
        return None
    close = difflib.get_close_matches(ref, EMBEDDED_MODELS, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"expected {' or '.join(map(repr, EMBEDDED_MODELS))}"
    return f"{ref!r} is no model that comes with Stillhouse; {hint}"
