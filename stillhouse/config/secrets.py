"""Secrets stay out of configs, which end up in logs, MLflow, reports and the server's database: configs name variables.

A key is recognised by the name it stands under or by the form its issuer gave it. Entropy is no sign: paths, hashes and
names of models have as much of it.
"""

import re
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Annotated, Any, Final
from urllib.parse import parse_qsl, urlsplit

from pydantic import AfterValidator, WithJsonSchema
from pydantic_core import PydanticCustomError

from stillhouse.types import JsonObject

SECRET_ERROR: Final = "secret"
"""Type of errors whose input is never shown."""

_VARIABLE_NAME: Final = r"^[A-Z_][A-Z0-9_]*$"
_SECRET_NAME: Final = re.compile(r"key|token|secret|password|credential", re.IGNORECASE)


def _names_a_variable(value: str) -> str:
    if re.fullmatch(_VARIABLE_NAME, value) is None:
        raise PydanticCustomError(
            SECRET_ERROR,
            "expected the name of an environment variable in capitals, such as OPENROUTER_API_KEY, never the key "
            "itself. Put OPENROUTER_API_KEY=... into .env or the environment, and its name here. A key that stood in a "
            "config may have been logged: have its provider replace it",
        )
    return value


VariableName = Annotated[
    str, AfterValidator(_names_a_variable), WithJsonSchema({"type": "string", "pattern": _VARIABLE_NAME})
]
"""Name of an environment variable that holds a secret; capitals only, since most keys have lower-case letters."""


def looks_secret(key: str) -> bool:
    """Return whether the name suggests that its value is a secret, not to be repeated in a message."""
    return _SECRET_NAME.search(key) is not None


def addresses_with_secrets(value: Any, where: str = "") -> Iterator[str]:
    """Yield the dotted keys of a dumped config whose values are addresses with a password or a key in them."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from addresses_with_secrets(item, f"{where}.{key}" if where else str(key))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from addresses_with_secrets(item, where)
    elif isinstance(value, str) and "://" in value and _address_holds_secret(value):
        yield where


_NAME: Final = re.compile(
    r"(?:^|[_.-])(?:(?:api|access|secret|private|subscription|signing)[_-]?key|apikey|secret|passw(?:or)?d|passwd"
    r"|(?:access|api|auth|bearer|hf|id|refresh|secret|session|github|gitlab|slack)[_-]?token|credentials?"
    r"|authorization)$",
    re.IGNORECASE,
)
_QUERY_NAME: Final = re.compile(r"^(?:key|token|auth|sig|signature|code|pwd)$", re.IGNORECASE)
_OPTION_NAME: Final = re.compile(r"(?:^|[_-])(?:key|token|auth|pat|pwd)$", re.IGNORECASE)
_VARIABLE_REFERENCE: Final = re.compile(r"\$?\{?[A-Z_][A-Z0-9_]*\}?")
_KEY_FORMATS: Final = re.compile(
    r"\b(?:sk|pk|rk|gsk|xai|nvapi|r8|fw|tgp)[-_][A-Za-z0-9_-]{16,}"
    r"|\bhf_[A-Za-z0-9]{16,}|\bAIza[\w-]{20,}|\bgithub_pat_\w{20,}"
    r"|\b(?:bearer|basic)\s+[\w.~+/=-]{8,}",
    re.IGNORECASE,
)
_FALSE_ALARMS: Final = ("Base64HighEntropyString", "HexHighEntropyString")
"""Detectors that mistake paths and class names for secrets."""


def looks_like_key(text: str) -> bool:
    """Return whether a detector of detect-secrets, other than those of entropy, finds a key."""
    # Importing takes a third of a second, which most configs need not wait for.
    from detect_secrets.core.scan import scan_line
    from detect_secrets.settings import transient_settings

    with transient_settings({"plugins_used": [{"name": name} for name in _detectors()]}):
        return any(True for line in text.splitlines() for _ in scan_line(line))


@cache
def _detectors() -> tuple[str, ...]:
    from detect_secrets.core.plugins.util import get_mapping_from_secret_type_to_class

    names = (plugin.__name__ for plugin in get_mapping_from_secret_type_to_class().values())
    return tuple(sorted(name for name in names if name not in _FALSE_ALARMS))


def keys_in_body(body: JsonObject, where: str) -> Iterator[str]:
    """Yield the dotted fields of a request body that are named like keys or whose text looks like one."""
    for name, value in body.items():
        place = f"{where}.{name}"
        if isinstance(value, dict):
            yield from keys_in_body(value, place)
        elif isinstance(value, list):
            yield from keys_in_body({str(index): item for index, item in enumerate(value)}, place)
        elif isinstance(value, str) and value and (_NAME.search(name) or _is_key(value)):
            yield place


def holds_key(command: Sequence[str]) -> bool:
    """Return whether a command contains a key: `--api-key KEY`, `TOKEN=KEY`, or one recognised by its format."""
    is_expected = False
    for argument in command:
        name, equals, value = argument.partition("=")
        if (is_expected and _is_value(argument)) or (equals and _names_key(name) and _is_value(value)):
            return True
        if _is_key(argument) or ("://" in argument and _address_holds_secret(argument)):
            return True
        is_expected = not equals and argument.startswith("-") and _names_key(argument)
    return False


def may_be_repeated(value: Any) -> bool:
    """Return whether an error message may show the invalid `value`."""
    if isinstance(value, dict):
        return not any(keys_in_body(value, ""))
    if isinstance(value, list | tuple):
        return all(map(may_be_repeated, value)) and not holds_key([str(item) for item in value])
    return not isinstance(value, str) or not holds_key([value, *value.split()])


def _address_holds_secret(text: str) -> bool:
    try:
        address = urlsplit(text)
        user, password, query = address.username, address.password, parse_qsl(address.query)
    except ValueError:
        return False
    return (
        bool(password)
        or (user is not None and _is_key(user))
        or any(_NAME.search(name) or _QUERY_NAME.search(name) or _is_key(value) for name, value in query if value)
    )


def _names_key(option: str) -> bool:
    name = option.lstrip("-")
    return bool(_NAME.search(name) or _OPTION_NAME.search(name))


def _is_value(text: str) -> bool:
    """Return whether the text is a value, not a variable or the next option."""
    return bool(text) and not text.startswith("-") and _VARIABLE_REFERENCE.fullmatch(text) is None


def _is_key(text: str) -> bool:
    return _KEY_FORMATS.search(text) is not None or looks_like_key(text)
