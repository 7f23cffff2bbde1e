"""The file of prices a user keeps: YAML, a model's name or a pattern, and USD per million tokens.

    # prices.yaml
    gpt-5-mini:
      prompt: 0.25
      completion: 2.00
      cached_prompt: 0.025    # optional; else as prompt
    "qwen/*":                 # * any characters, ? any one, [ab] one of these
      prompt: 0.10
      completion: 0.40

A name that is written out goes before any pattern; of several patterns the first in the file holds.
"""

from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, RootModel, ValidationError

from stillhouse.config import ModelRole
from stillhouse.errors import ConfigError
from stillhouse.inference.endpoint import Price


class _Row(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    prompt: float = Field(ge=0.0)
    completion: float = Field(ge=0.0)
    cached_prompt: float | None = Field(default=None, ge=0.0)


class _Table(RootModel[dict[str, _Row]]):
    pass


def price_in_file(path: str, model: str, role: ModelRole = ModelRole.TEACHER) -> Price | None:
    """The price of `model` in a file of prices; None when no line of it is about that model.

    Args:
        path: of the file.
        model: name at its endpoint.
        role: whose section names the file.

    Raises:
        ConfigError: the file is not there, is not YAML, or does not have the form shown above.
    """
    rows = _read(Path(path), f"{role.section}.prices_file")
    row = rows.get(model) or next((row for name, row in rows.items() if fnmatchcase(model, name)), None)
    return None if row is None else Price(row.prompt, row.completion, cached_prompt=row.cached_prompt)


def _read(path: Path, field: str) -> dict[str, _Row]:
    try:
        body: Any = yaml.safe_load(path.read_bytes())
    except OSError as error:
        raise ConfigError(
            f"{field}: {path} cannot be read ({error.strerror}). Correct the path, or leave the field out"
        ) from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{field}: {path} is not valid YAML: {error}. Correct the file") from error
    try:
        return _Table.model_validate(body).root
    except ValidationError as error:
        raise ConfigError(f"{field}: {path}: {_told(error)}") from error


def _told(error: ValidationError) -> str:
    found = error.errors(include_url=False)[0]
    place = ".".join(str(part) for part in found["loc"]) or "the file"
    return (
        f"{place}: {found['msg']}, found {found['input']!r}. Expected for each model name or pattern a mapping of "
        "prompt, completion and, if it differs, cached_prompt: numbers in USD per million tokens, from 0"
    )
