"""The keys of a foreign config: where each value goes, or why it is not mapped. Secrets are never copied."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

from pydantic import ValidationError

from stillhouse.config import DistillConfig
from stillhouse.config.written_keys import has_the_form_of_a_key
from stillhouse.errors import ConfigError
from stillhouse.interop.source_record import Unmapped
from stillhouse.types import JsonObject

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


NO_COUNTERPART: Final = "a key that has no counterpart here"
LEARN_FROM_IT: Final = "What it writes can be learnt from: sft is on in place of on_policy; set teacher.base_url"
_ELSEWHERE: Final = "refers to what is not in this file"
_SECRET: Final = "holds a secret, which is never copied: set it by the name of an environment variable"


def _same(value: Any) -> Any:
    return value


@dataclass(frozen=True, slots=True)
class To:
    """Where the value of a key goes.

    `convert` gives the value as it is written here; ValueError says why there is none, None that none is needed.
    """

    targets: tuple[str, ...]
    convert: Callable[[Any], Any] = _same


Table = Mapping[str, To | str]
"""By dotted key: where its value goes, or why it goes nowhere, as do all keys below it that are not in the table."""


def to(*targets: str) -> To:
    """The value as it is, at each of `targets`."""
    return To(targets)


class ConfigMapper:
    """Collects values of our config from those of a foreign one."""

    def __init__(self) -> None:
        self.unmapped: list[Unmapped] = []
        self._values: dict[str, Any] = {}
        self._origins: dict[str, tuple[str, Any]] = {}

    def apply(self, body: Mapping[str, Any], table: Table, prefix: str = "", reason: str = NO_COUNTERPART) -> None:
        """Takes every key of `body` by the table; one that is not in it is left for `reason`, null says nothing."""
        for name, value in body.items():
            key = f"{prefix}{name}"
            rule = table.get(key)
            if value is None:
                continue
            if isinstance(rule, To):
                self._move(key, value, rule)
            elif isinstance(value, dict) and any(known.startswith(f"{key}.") for known in table):
                self.apply(value, table, f"{key}.", rule or NO_COUNTERPART)
            else:
                self.leave(rule or reason, key, value)

    def leave(self, reason: str, key: str, value: Any) -> None:
        """Writes down that a key goes nowhere; secrets in its value stay behind."""
        self.unmapped.append(Unmapped(reason, key, without_secrets(key, value)))

    def set(self, target: str, value: Any, key: str = "", origin: Any = None) -> None:
        """Sets a value of our config; `key` and `origin` say what it comes from."""
        if target in self._values and self._values[target] != value:
            other = self._origins[target][0]
            self.leave(f"another key says otherwise and stands: {other}", key, origin)
            return
        self._values[target] = value
        self._origins[target] = (key, origin)

    def get(self, target: str) -> Any:
        """The value set at `target`; None where there is none."""
        return self._values.get(target)

    def _move(self, key: str, value: Any, rule: To) -> None:
        if is_secret(key, value):
            self.leave(_SECRET, key, value)
            return
        if isinstance(value, str) and "${" in value:
            self.leave(_ELSEWHERE, key, value)
            return
        try:
            converted = rule.convert(value)
        except ValueError as error:
            self.leave(str(error), key, value)
            return
        if converted is not None:
            for target in rule.targets:
                self.set(target, converted, key, value)

    def body(self) -> JsonObject:
        """The body of a config that loads, in the order of its fields. Values it would refuse are unmapped, and why.

        Raises:
            ConfigError: values that are right each by itself do not go together.
        """
        while True:
            try:
                config = DistillConfig.model_validate(_nested(self._values))
            except ValidationError as error:
                wrong = {self._target(item["loc"]): str(item["msg"]) for item in error.errors(include_url=False)}
                if None in wrong:
                    raise ConfigError(f"the keys of this config do not go together here: {wrong[None]}") from error
                for target, message in wrong.items():
                    key, origin = self._origins.pop(str(target))
                    del self._values[str(target)]
                    self.leave(f"{target}: {message[:1].lower()}{message[1:]}", key, origin)
            else:
                return config.model_dump(mode="json", exclude_unset=True)

    def _target(self, location: tuple[int | str, ...]) -> str | None:
        parts = [str(part) for part in location]
        heads = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
        return next((head for head in heads if head in self._values), None)


def _nested(values: Mapping[str, Any]) -> JsonObject:
    """Dotted keys as sections."""
    body: JsonObject = {}
    for target in values:
        *sections, name = target.split(".")
        inside = body
        for section in sections:
            inside = inside.setdefault(section, {})
        inside[name] = values[target]
    return body
