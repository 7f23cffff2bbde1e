"""Reads a config from YAML, applies `section.key=value` overrides, and explains errors."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from stillhouse.config.expected import expected
from stillhouse.config.root import DistillConfig
from stillhouse.config.secrets import SECRET_ERROR, looks_secret, may_be_repeated
from stillhouse.config.suggest import keys_named, nearest, not_a_config, section_at
from stillhouse.config.yaml_text import read_yaml
from stillhouse.errors import ConfigError

_ALTERNATIVE: Final = re.compile(r"bool|(constrained-)?(int|float|str)|(literal|tuple|list|dict)\[.*\]")
"""The last part of the place of a mistake, which names one of the types that a value may have."""


def load_config(path: Path, overrides: Sequence[str] = ()) -> DistillConfig:
    """Return the config in a YAML file, with `section.key=value` overrides.

    Raises ConfigError if the file cannot be read, is not YAML, or holds a wrong key or value; the message names file,
    key, value seen and value expected, one line for each mistake.
    """
    if (problem := not_a_config(path)) is not None:
        raise ConfigError(problem)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}. Expected a YAML file such as configs/demo.yaml") from error
    try:
        body = read_yaml(text)
    except ValueError as error:
        raise ConfigError(f"{path}: not valid YAML: {error}") from None
    if body is None:
        body = {}
    if not isinstance(body, dict):
        raise ConfigError(
            f"{path}: expected sections such as `prompts:` at the top level, saw {type(body).__name__} {body!r}",
            code="sections",
        )
    return parse_config(body, origin=str(path), overrides=overrides)


def parse_config(body: dict[str, Any], origin: str, overrides: Sequence[str] = ()) -> DistillConfig:
    """Return the config of a parsed YAML body; `origin` names its source in errors. Raises as `load_config`."""
    for override in overrides:
        _apply_override(body, override)
    try:
        return DistillConfig.model_validate(body)
    except ValidationError as error:
        items = _without_alternatives(error)
    raise ConfigError("\n".join(_explain(origin, item) for item in items), code=_code(items[0]))


def _apply_override(body: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    parts = key.strip().split(".")
    if not equals or len(parts) < 2 or not all(parts):
        meant = [f"{found}={text}" for found in keys_named(key.strip(), DistillConfig)] if equals else []
        hint = f"did you mean {' or '.join(meant)}?" if meant else "for instance sft.num_epochs=2"
        raise ConfigError(f"--set {override!r}: expected section.key=value; {hint}", code="set")
    try:
        value = read_yaml(text)
    except ValueError as error:
        raise ConfigError(f"--set {override!r}: the value is not valid YAML: {error}") from None
    section = body
    for part in parts[:-1]:
        child = section.get(part)
        if child is None:
            child = section[part] = {}
        if isinstance(child, list):
            raise ConfigError(f"--set {override!r}: {part} is a list, which is set as a whole, as {part}=[...]")
        if not isinstance(child, dict):
            raise ConfigError(f"--set {override!r}: {part} is not a section, and has no keys")
        section = child
    section[parts[-1]] = value


def _without_alternatives(error: ValidationError) -> list[dict[str, Any]]:
    """Return the mistakes, one for a value that fits none of several types, for each of which pydantic reports one."""
    mistakes: dict[tuple[int | str, ...], dict[str, Any]] = {}
    for item in error.errors(include_url=False):
        *place, last = item["loc"] or ("",)
        if item["type"] == "too_short" and any(loc[:-1] == item["loc"] for loc in mistakes):
            continue  # Pydantic leaves wrong items out of its count.
        if not (isinstance(last, str) and _ALTERNATIVE.fullmatch(last)):
            mistakes[item["loc"]] = dict(item)
            continue
        before = mistakes.get(tuple(place))
        message = expected(item) if before is None else f"{before['msg']} or {expected(item).removeprefix('expected ')}"
        mistakes[tuple(place)] = {**item, "loc": tuple(place), "type": "alternatives", "msg": message}
    return list(mistakes.values())


def _code(item: Any) -> str | None:
    if item["type"] == "extra_forbidden":
        return "unknown-key"
    return getattr(item.get("ctx", {}).get("error"), "code", None)


def _explain(origin: str, item: Any) -> str:
    # A wrong key of a mapping has its own place, and `[key]` behind it.
    key = ".".join(str(part) for part in item["loc"] if part != "[key]")
    kind, seen = item["type"], item["input"]
    message = expected(item)
    if kind == "extra_forbidden":
        message = f"unknown key; {_meant(item['loc'])}"
    # Of a missing key and of keys in conflict the input is the whole section, whose message names them.
    is_section = kind == "missing" or (kind == "value_error" and isinstance(seen, dict))
    is_secret = kind == SECRET_ERROR or (kind == "extra_forbidden" and looks_secret(key)) or not may_be_repeated(seen)
    shown = key if is_section or is_secret else f"{key} = {seen!r}"
    return f"{origin}: {shown}: {message}" if key else f"{origin}: {message}"


def _meant(location: tuple[int | str, ...]) -> str:
    """Return the keys that an unknown one may have been meant to be."""
    name = str(location[-1])
    if "." in name:
        above, _, key = name.rpartition(".")
        return f"expected {key} in the section {above}"
    *place, _ = location
    section = section_at(DistillConfig, place)
    known = [] if section is None else list(section.model_fields)
    if close := nearest(name, known):
        return f"did you mean {close!r}?"
    meant = [key for key in keys_named(name, DistillConfig) if key.endswith(f".{name}")]
    if not meant and section is not None:
        meant = [".".join([*map(str, place), key]) for key in keys_named(name, section)]
    if meant:
        return f"did you mean {' or '.join(map(repr, meant))}?"
    return f"known keys here: {', '.join(known)}" if known else "leave it out"
