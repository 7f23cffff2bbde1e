"""What of a foreign config may be shown or copied: never a key, a password, or the value of an environment variable."""

import re
from typing import Any, Final
from urllib.parse import urlsplit

from stillhouse.config.written_keys import has_the_form_of_a_key

HIDDEN: Final = "(not shown)"
_SECRET_NAME: Final = re.compile(
    r"(?:^|[_.-])(?:(?:api|access|secret|private)[_-]?key|apikey|secret|passw(?:or)?d|token|credentials?|auth)$", re.I
)
_ENVIRONMENTS: Final = frozenset({"system_envs", "docker_env", "env", "environment", "env_vars"})


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
    return bool(_SECRET_NAME.search(key)) or _carries_one(str(value)) or has_the_form_of_a_key(str(value))


def _carries_one(text: str) -> bool:
    try:
        address = urlsplit(text)
    except ValueError:
        return False
    return "://" in text and bool(address.query or address.password)
