"""Keys that a config spells out where it should name their variables: in addresses, request bodies and commands.

A key is known by the name it stands under or by the form its issuer gave it. Entropy is no sign: paths, hashes and
names of models have as much of it.
"""

import re
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

from stillhouse.types import JsonObject

_NAME: Final = re.compile(
    r"(?:^|[_.-])(?:(?:api|access|secret|private|subscription|signing)[_-]?key|apikey|secret|passw(?:or)?d|passwd"
    r"|(?:access|api|auth|bearer|hf|id|refresh|secret|session|github|gitlab|slack)[_-]?token|credentials?"
    r"|authorization)$",
    re.IGNORECASE,
)
_NAME_IN_ADDRESS: Final = re.compile(r"^(?:key|token|auth|sig|signature|code|pwd)$", re.IGNORECASE)
_NAME_OF_OPTION: Final = re.compile(r"(?:^|[_-])(?:key|token|auth|pat|pwd)$", re.IGNORECASE)
_VARIABLE: Final = re.compile(r"\$?\{?[A-Z_][A-Z0-9_]*\}?")
_FORMS: Final = re.compile(
    r"\b(?:sk|pk|rk|gsk|xai|nvapi|r8|fw|tgp)[-_][A-Za-z0-9_-]{16,}"
    r"|\bhf_[A-Za-z0-9]{16,}|\bAIza[\w-]{20,}|\bgithub_pat_\w{20,}"
    r"|\b(?:bearer|basic)\s+[\w.~+/=-]{8,}",
    re.IGNORECASE,
)
_BY_CHANCE: Final = ("Base64HighEntropyString", "HexHighEntropyString")
"""Detectors that also take paths and class names for secrets."""


def has_the_form_of_a_key(text: str) -> bool:
    """Whether one of detect-secrets' detectors that look for more than entropy finds something."""
    # Takes a third of a second to import, which most configs need not wait for.
    from detect_secrets.core.scan import scan_line
    from detect_secrets.settings import transient_settings

    with transient_settings({"plugins_used": [{"name": name} for name in _detectors()]}):
        return any(True for line in text.splitlines() for _ in scan_line(line))


@cache
def _detectors() -> tuple[str, ...]:
    from detect_secrets.core.plugins.util import get_mapping_from_secret_type_to_class

    names = (plugin.__name__ for plugin in get_mapping_from_secret_type_to_class().values())
    return tuple(sorted(name for name in names if name not in _BY_CHANCE))


def keys_in_addresses(value: Any, where: str = "") -> Iterator[str]:
    """The dotted fields under which `value`, a dumped config, has an address with a key for a user or in its query."""
    if isinstance(value, dict):
        for key, below in value.items():
            yield from keys_in_addresses(below, f"{where}.{key}" if where else str(key))
    elif isinstance(value, list | tuple):
        for below in value:
            yield from keys_in_addresses(below, where)
    elif isinstance(value, str) and "://" in value and _address_holds_key(value):
        yield where


def keys_in_body(body: JsonObject, where: str) -> Iterator[str]:
    """The dotted fields of a request's `body` that are named as keys are, or whose text has the form of one."""
    for name, value in body.items():
        place = f"{where}.{name}"
        if isinstance(value, dict):
            yield from keys_in_body(value, place)
        elif isinstance(value, list):
            yield from keys_in_body({str(index): one for index, one in enumerate(value)}, place)
        elif isinstance(value, str) and value and (_NAME.search(name) or _is_key(value)):
            yield place


def holds_key(command: Sequence[str]) -> bool:
    """Whether a program's arguments have a key among them: `--api-key KEY`, `TOKEN=KEY`, or one known by its form."""
    named = False
    for argument in command:
        name, equals, value = argument.partition("=")
        if (named and _is_value(argument)) or (equals and _names_key(name) and _is_value(value)):
            return True
        if _is_key(argument) or ("://" in argument and _address_holds_key(argument)):
            return True
        named = not equals and argument.startswith("-") and _names_key(argument)
    return False


def may_be_repeated(value: Any) -> bool:
    """Whether an error may show `value`, which stood where something else was expected."""
    if isinstance(value, dict):
        return not any(keys_in_body(value, ""))
    if isinstance(value, list | tuple):
        return all(map(may_be_repeated, value)) and not holds_key([str(one) for one in value])
    return not isinstance(value, str) or not holds_key([value, *value.split()])


def _address_holds_key(text: str) -> bool:
    try:
        address = urlsplit(text)
        user, query = address.username, parse_qsl(address.query)
    except ValueError:
        return False
    return (user is not None and _is_key(user)) or any(
        _NAME.search(name) or _NAME_IN_ADDRESS.search(name) or _is_key(value) for name, value in query if value
    )


def _names_key(option: str) -> bool:
    name = option.lstrip("-")
    return bool(_NAME.search(name) or _NAME_OF_OPTION.search(name))


def _is_value(text: str) -> bool:
    """Whether it is more than the name of a variable or the next option."""
    return bool(text) and not text.startswith("-") and _VARIABLE.fullmatch(text) is None


def _is_key(text: str) -> bool:
    return _FORMS.search(text) is not None or has_the_form_of_a_key(text)
