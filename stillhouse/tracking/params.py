"""A config as MLflow params: flat keys, text values, within MLflow's limits."""

import json
from collections.abc import Mapping
from typing import Any

MAX_PARAM_CHARS = 6000
"""Longest value of an MLflow param."""
MAX_TAG_CHARS = 8000
"""Longest value of an MLflow tag."""


def flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """The leaves of a nested mapping by dotted key, `{"sft": {"epochs": 2}}` -> `{"sft.epochs": "2"}`.

    Lists are leaves, written as JSON; None, True and False are written as in YAML.
    """
    flat: dict[str, str] = {}
    for key, value in config.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            flat.update(flatten(value, prefix=f"{name}."))
        else:
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
            flat[name] = shorten(text, MAX_PARAM_CHARS)
    return flat


def shorten(text: str, max_chars: int) -> str:
    """`text`, cut to `max_chars` with a note of its full length when it is longer."""
    if len(text) <= max_chars:
        return text
    note = f" ... [cut: {len(text)} characters in all]"
    return text[: max_chars - len(note)] + note
