"""Reads a config from YAML, applies `section.key=value` overrides, and explains errors."""

import difflib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from stillhouse.config.root import DistillConfig
from stillhouse.config.secrets import SECRET_ERROR, looks_secret, may_be_repeated
from stillhouse.errors import ConfigError


def load_config(path: Path, overrides: Sequence[str] = ()) -> DistillConfig:
    """Loads the config of a YAML file with `section.key=value` overrides.

    Raises:
        ConfigError: the file cannot be read, is not YAML, or holds a wrong key or value; the message names file, key,
            value seen and value expected, one line for each mistake.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}. Expected a YAML file such as configs/demo.yaml") from error
    try:
        body = yaml.safe_load(text)
    except yaml.YAMLError as error:
        # Without its cause, which would show the lines again.
        raise ConfigError(f"{path}: not valid YAML: {_yaml_problem(error)}") from None
    if body is None:
        body = {}
    if not isinstance(body, dict):
        raise ConfigError(f"{path}: expected sections such as `prompts:` at the top level, saw {_kind(body)}")
    return parse_config(body, origin=str(path), overrides=overrides)


def parse_config(body: dict[str, Any], origin: str, overrides: Sequence[str] = ()) -> DistillConfig:
    """Validates a parsed YAML body with overrides; `origin` names its source in errors.

    Raises:
        ConfigError: as `load_config`.
    """
    for override in overrides:
        _apply_override(body, override)
    try:
        return DistillConfig.model_validate(body)
    except ValidationError as error:
        raise ConfigError("\n".join(_explain(origin, item) for item in error.errors(include_url=False))) from error


def _yaml_problem(error: yaml.YAMLError) -> str:
    """Problem and position, with the surrounding lines unless they may contain a key."""
    mark = getattr(error, "problem_mark", None)
    if mark is None or (may_be_repeated(str(error)) and not looks_secret(str(error))):
        return str(error)
    return f"{getattr(error, 'problem', None) or 'it cannot be read'} in line {mark.line + 1}, column {mark.column + 1}"


def _apply_override(body: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    parts = key.strip().split(".")
    if not equals or len(parts) < 2 or not all(parts):
        raise ConfigError(f"--set {override!r}: expected section.key=value, for instance sft.num_epochs=2")
    try:
        value = _read_value(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"--set {override!r}: the value is not valid YAML: {error}") from error
    section = body
    for part in parts[:-1]:
        child = section.get(part)
        if child is None:
            child = section[part] = {}
        if not isinstance(child, dict):
            raise ConfigError(f"--set {override!r}: {part} is not a section but {_kind(child)}")
        section = child
    section[parts[-1]] = value


def _read_value(text: str) -> Any:
    """Parses YAML; unquoted `1e-4`, text in YAML 1.1, becomes a number."""
    value = yaml.safe_load(text)
    if value == text.strip():
        try:
            return float(value)
        except ValueError:
            return value
    return value


def _explain(origin: str, item: Any) -> str:
    key = ".".join(str(part) for part in item["loc"])
    message = str(item["msg"]).removeprefix("Value error, ")
    if item["type"] == "extra_forbidden":
        known = _sibling_keys(item["loc"])
        close = difflib.get_close_matches(str(item["loc"][-1]), known, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"known keys here: {', '.join(known)}"
        seen = "" if looks_secret(key) or not may_be_repeated(item["input"]) else f" = {item['input']!r}"
        return f"{origin}: {key}{seen}: unknown key; {hint}"
    if not key:
        return f"{origin}: {message}"
    if item["type"] == SECRET_ERROR:
        return f"{origin}: {key}: {message}"
    if isinstance(item["input"], dict) and item["type"] == "value_error":
        # The message names the conflicting keys; the section may be long.
        return f"{origin}: {key}: {message}"
    seen = f" = {item['input']!r}" if may_be_repeated(item["input"]) else ""
    return f"{origin}: {key}{seen}: {message[:1].lower()}{message[1:]}"


def _sibling_keys(location: tuple[int | str, ...]) -> list[str]:
    model: type[BaseModel] = DistillConfig
    for part in location[:-1]:
        field = model.model_fields.get(str(part))
        if field is None or not (isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)):
            return []
        model = field.annotation
    return list(model.model_fields)


def _kind(value: object) -> str:
    return f"{type(value).__name__} {value!r}"
