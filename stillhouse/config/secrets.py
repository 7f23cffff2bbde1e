"""Secrets stay out of configs, which land in logs, MLflow, reports and the server's database: they are named there."""

import re
from collections.abc import Iterator
from typing import Annotated, Any, Final
from urllib.parse import urlsplit

from pydantic import AfterValidator, WithJsonSchema
from pydantic_core import PydanticCustomError

SECRET_ERROR: Final = "secret"
"""Type of an error whose input is shown to nobody."""

_VARIABLE: Final = r"^[A-Z_][A-Z0-9_]*$"
_TELLING: Final = re.compile(r"key|token|secret|password|credential", re.IGNORECASE)


def _names_a_variable(value: str) -> str:
    if re.fullmatch(_VARIABLE, value) is None:
        raise PydanticCustomError(
            SECRET_ERROR,
            "expected the name of an environment variable in capitals, such as OPENROUTER_API_KEY, never the key "
            "itself. Put OPENROUTER_API_KEY=... into .env or the environment, and its name here. A key that stood in a "
            "config may have been logged: have its provider replace it",
        )
    return value


VariableName = Annotated[
    str, AfterValidator(_names_a_variable), WithJsonSchema({"type": "string", "pattern": _VARIABLE})
]
"""Name of an environment variable that holds a secret. Capitals alone, for most keys have small letters."""


def looks_secret(key: str) -> bool:
    """Whether the value of a key of this name is better not repeated in a message."""
    return _TELLING.search(key) is not None


def passwords_in(value: Any, where: str = "") -> Iterator[str]:
    """The dotted keys under which `value`, a dumped config, has an address with a password in it."""
    if isinstance(value, dict):
        for key, below in value.items():
            yield from passwords_in(below, f"{where}.{key}" if where else str(key))
    elif isinstance(value, list | tuple):
        for below in value:
            yield from passwords_in(below, where)
    elif isinstance(value, str) and "://" in value and _password_of(value):
        yield where


def _password_of(address: str) -> str | None:
    try:
        return urlsplit(address).password
    except ValueError:
        return None
