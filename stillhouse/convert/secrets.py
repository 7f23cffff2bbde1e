"""What of a foreign config may be shown or copied: never a key, a password, or the value of an environment variable."""

import re
from functools import cache
from typing import Any, Final
from urllib.parse import urlsplit

HIDDEN: Final = "(not shown)"
_SECRET_NAME: Final = re.compile(
    r"(?:^|[_.-])(?:(?:api|access|secret|private)[_-]?key|apikey|secret|passw(?:or)?d|token|credentials?|auth)$", re.I
)
_ENVIRONMENTS: Final = frozenset({"system_envs", "docker_env", "env", "environment", "env_vars"})
_BY_CHANCE: Final = ("Base64HighEntropyString", "HexHighEntropyString")
"""Detectors that also take paths and class names for secrets."""


def without_secrets(key: str, value: Any) -> Any:
    """`value` as it may be written down: `HIDDEN` in place of each secret, names alone of environments."""
    name = key.rpartition(".")[2]
    if isinstance(value, dict):
        if name in _ENVIRONMENTS:
            return dict.fromkeys(map(str, value), HIDDEN)
        return {str(inner): without_secrets(str(inner), part) for inner, part in value.items()}
    if isinstance(value, list):
        return [without_secrets(key, part) for part in value]
    return HIDDEN if is_secret(key, value) else value


def is_secret(key: str, value: Any) -> bool:
    """Whether a value is one by its key's name, as an address that carries one, or by its own form."""
    if isinstance(value, list):
        return any(is_secret(key, part) for part in value)
    if value in (None, "") or isinstance(value, bool):
        return False
    return bool(_SECRET_NAME.search(key)) or _carries_one(str(value)) or _has_the_form_of_one(str(value))


def _carries_one(text: str) -> bool:
    try:
        address = urlsplit(text)
    except ValueError:
        return False
    return "://" in text and bool(address.query or address.password)


def _has_the_form_of_one(text: str) -> bool:
    from detect_secrets.core.scan import scan_line
    from detect_secrets.settings import transient_settings

    with transient_settings({"plugins_used": [{"name": name} for name in _detectors()]}):
        return any(True for line in text.splitlines() for _ in scan_line(line))


@cache
def _detectors() -> tuple[str, ...]:
    from detect_secrets.core.plugins.util import get_mapping_from_secret_type_to_class

    names = (plugin.__name__ for plugin in get_mapping_from_secret_type_to_class().values())
    return tuple(sorted(name for name in names if name not in _BY_CHANCE))
