"""The keys of a foreign config: where each value goes, or why it is not mapped. Secrets are never copied."""

import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from pydantic import ValidationError

from stillhouse.config import DistillConfig
from stillhouse.config.expected import expected
from stillhouse.config.secrets import looks_like_key
from stillhouse.errors import ConfigError
from stillhouse.interop.source_record import Unmapped
from stillhouse.types import JsonObject

NO_COUNTERPART: Final = "a key that has no counterpart here"
LEARN_FROM_IT: Final = "What it writes can be learnt from: sft is on in place of on_policy; set teacher.base_url"
_SECRET: Final = "holds a secret, which is never copied: set it by the name of an environment variable"
HIDDEN: Final = "(not shown)"
_SECRET_NAME: Final = re.compile(
    r"(?:^|[_.-])(?:(?:api|access|secret|private)[_-]?key|apikey|secret|passw(?:or)?d|token|credentials?|auth)$", re.I
)
_ENVIRONMENTS: Final = frozenset({"system_envs", "docker_env", "env", "environment", "env_vars"})


def without_secrets(key: str, value: Any) -> Any:
    """Return `value` with `HIDDEN` in place of secrets and of all values of environment variables."""
    name = key.rpartition(".")[2]
    if isinstance(value, dict):
        if name in _ENVIRONMENTS:
            return dict.fromkeys(map(str, value), HIDDEN)
        return {str(inner): without_secrets(str(inner), part) for inner, part in value.items()}
    if isinstance(value, list):
        return [without_secrets(key, part) for part in value]
    return HIDDEN if is_secret(key, value) else value


def is_secret(key: str, value: Any) -> bool:
    """Return whether a value is a secret by its key, as a URL with credentials, or by its form."""
    if isinstance(value, list):
        return any(is_secret(key, part) for part in value)
    if value in (None, "") or isinstance(value, bool):
        return False
    return bool(_SECRET_NAME.search(key)) or _has_credentials(str(value)) or looks_like_key(str(value))


def _has_credentials(text: str) -> bool:
    with suppress(ValueError):
        url = urlsplit(text)
        return "://" in text and bool(url.query or url.password)
    return False


@dataclass(frozen=True, slots=True)
class Target:
    """The keys of our config that receive a value.

    `convert` returns our value, or None for none; its ValueError is the reason why the value is unmapped.
    """

    targets: tuple[str, ...]
    convert: Callable[[Any], Any] = lambda value: value


class Approximated(str):
    """A reason that describes what happens in place of what the key says."""

    __slots__ = ()


Table = Mapping[str, Target | str]
"""By dotted key: its target, or the reason why it and the keys below it that are not in the table are unmapped."""

Default = tuple[str, str, Any]
"""Target, the foreign key, and the value that the foreign program takes where the key is absent."""


class MappedKey(NamedTuple):
    """A foreign key and the key of our config that has its value."""

    key: str
    """Empty where no foreign key says so."""
    target: str
    value: Any
    origin: Any
    """The foreign value."""
    is_default: bool = False
    """True where the foreign file leaves the key out, and the value is the other program's default."""


def to(*targets: str) -> Target:
    """Copy a value unchanged to each of `targets`."""
    return Target(targets)


def elsewhere(*keys: str) -> Table:
    """Pass over keys that are mapped outside the table."""
    return dict.fromkeys(keys, Target((), lambda _: None))


def refused(reason: str, *, unless: Callable[[Any], bool]) -> Target:
    """Leave a value unmapped for `reason`, unless it asks for nothing that is not so here."""

    def refuse(value: Any) -> None:
        if not unless(value):
            raise ValueError(reason)

    return Target((), refuse)


def value_at(body: Any, *path: str) -> Any:
    """Return the value at a path of keys, or None."""
    for key in path:
        body = body.get(key) if isinstance(body, dict) else None
    return body


def section(body: Mapping[str, Any], *path: str) -> JsonObject:
    """Return the section at a path of keys; an empty one where there is none."""
    value = value_at(body, *path)
    return value if isinstance(value, dict) else {}


class ConfigMapper:
    """Collects values of our config from a foreign one."""

    def __init__(self) -> None:
        self.unmapped: list[Unmapped] = []
        self._set: dict[str, MappedKey] = {}

    @property
    def mapped(self) -> list[MappedKey]:
        """Return every key that was mapped, in the order of mapping; those without a foreign key are left out."""
        return [entry for entry in self._set.values() if entry.key]

    def apply(self, body: Mapping[str, Any], table: Table, prefix: str = "", reason: str = NO_COUNTERPART) -> None:
        """Map every key of `body` by the table; other keys are unmapped for `reason`.

        Null values and empty sections are ignored.
        """
        for name, value in body.items():
            key = f"{prefix}{name}"
            rule = table.get(key)
            if value is None or value == {}:
                continue
            if isinstance(rule, Target):
                self._move(key, value, rule)
            elif isinstance(value, dict) and any(rule_key.startswith(f"{key}.") for rule_key in table):
                self.apply(value, table, f"{key}.", rule or NO_COUNTERPART)
            else:
                self.skip(rule or reason, key, value)

    def skip(self, reason: str, key: str, value: Any) -> None:
        """Record an unmapped key, without secrets in its value."""
        shown = without_secrets(key, value)
        self.unmapped.append(Unmapped(str(reason), key, shown, isinstance(reason, Approximated)))

    def set(self, target: str, value: Any, key: str = "", origin: Any = None, *, is_default: bool = False) -> None:
        """Set a value of our config, given the foreign `key` and its value `origin`."""
        held = self._set.get(target)
        if held is not None and held.value != value:
            self.skip(f"another key says otherwise and stands: {held.key}", key, origin)
        else:
            self._set[target] = MappedKey(key, target, value, origin, is_default)

    def fill(self, defaults: Iterable[Default]) -> None:
        """Write out the other program's defaults where they differ from ours and no key sets them."""
        for target, key, value in defaults:
            if target not in self._set:
                self.set(target, value, key, value, is_default=True)

    def replace(self, target: str, value: Any) -> None:
        """Set a value of our config in place of the one that a foreign key gave it."""
        self._set[target] = MappedKey("", target, value, None)

    def get(self, target: str) -> Any:
        """Return the value set at `target`, or None."""
        return self._set[target].value if target in self._set else None

    def _move(self, key: str, value: Any, rule: Target) -> None:
        if is_secret(key, value):
            self.skip(_SECRET, key, value)
            return
        if isinstance(value, str) and "${" in value:
            self.skip("refers to what is not in this file", key, value)
            return
        try:
            converted = rule.convert(value)
        except ValueError as error:
            self.skip(error.args[0], key, value)
            return
        if converted is not None:
            for target in rule.targets:
                self.set(target, converted, key, value)

    def body(self) -> JsonObject:
        """Return a valid config body in the order of its fields; values that fail validation are unmapped.

        Raises ConfigError if the values contradict each other.
        """
        while True:
            try:
                config = DistillConfig.model_validate(self._nested())
            except ValidationError as error:
                wrong = {self._target(item["loc"]): expected(item) for item in error.errors(include_url=False)}
                if None in wrong:
                    raise ConfigError(
                        f"the keys of this config do not go together here: {wrong[None]}. {self._sources(wrong[None])}"
                    ) from error
                for target, message in wrong.items():
                    dropped = self._set.pop(str(target))
                    self.skip(f"{target}: {message}", dropped.key, dropped.origin)
            else:
                return config.model_dump(mode="json", exclude_unset=True)

    def _sources(self, message: str) -> str:
        """Return the foreign keys behind the settings that a message names."""
        named = [
            f"{entry.target} is {entry.key} = {without_secrets(entry.key, entry.origin)!r}"
            for entry in self.mapped
            if entry.target.rpartition(".")[2] in message
        ]
        return f"In the file: {'; '.join(named)}" if named else ""

    def _target(self, location: tuple[int | str, ...]) -> str | None:
        parts = [str(part) for part in location]
        heads = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
        return next((head for head in heads if head in self._set), None)

    def _nested(self) -> JsonObject:
        body: JsonObject = {}
        for target, entry in self._set.items():
            *sections, name = target.split(".")
            inside = body
            for section in sections:
                inside = inside.setdefault(section, {})
            inside[name] = entry.value
        return body


def set_algorithm(mapper: ConfigMapper) -> None:
    """Set `on_policy.algorithm` to the one that the mapped coefficients and divergence are of."""
    coefs = [entry.get("kl_coef") for entry in mapper.get("on_policy.teachers") or ()]
    has_kl = mapper.get("on_policy.kl_coef") != 0 or any(coefs)
    if not mapper.get("on_policy.reward_coef"):
        algorithm = "divergence" if mapper.get("on_policy.divergence") else "sampled_kl"
    else:
        algorithm = "mixed" if has_kl else "rewards"
    mapper.set("on_policy.algorithm", algorithm)
