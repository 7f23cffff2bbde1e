"""Tables of the keys of rnow and ROLL: what `stillhouse convert` makes of each, found by converting configs."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

import yaml

from stillhouse.interop.mapping import ConfigMapper
from stillhouse.interop.rnow_config import map_rnow
from stillhouse.interop.roll_config import map_roll
from stillhouse.report.markdown import table
from stillhouse.types import JsonObject

CONFIGS: Final = Path(__file__).with_suffix(".yaml")
SYSTEMS: Final[dict[str, Callable[[JsonObject, ConfigMapper, Path], list[str]]]] = {"rnow": map_rnow, "roll": map_roll}
_NOWHERE: Final = Path("/nonexistent")
"""No file that a config names is beside it."""


class Outcome(NamedTuple):
    """What becomes of a key."""

    status: str
    targets: tuple[str, ...]
    """Keys of our config that depend on it; with their values where the key is left out."""
    reasons: tuple[str, ...]

    def __str__(self) -> str:
        return "; ".join([", ".join(f"`{target}`" for target in self.targets)] * bool(self.targets) + [*self.reasons])


@cache
def tables() -> dict[str, str]:
    """Markdown tables by the names under which the page asks for them."""
    systems = yaml.safe_load(CONFIGS.read_text(encoding="utf-8"))
    return {f"keys {name}": _table(name, systems[name]) for name in SYSTEMS}


def converted(system: str, body: JsonObject) -> ConfigMapper:
    """A config after its conversion and validation."""
    mapper = ConfigMapper()
    files = SYSTEMS[system](deepcopy(body), mapper, _NOWHERE)
    if files:
        mapper.set("prompts.source", files[0])
    # What fails validation is unmapped only now.
    mapper.body()
    return mapper


def outcomes(system: str, body: JsonObject) -> dict[str, list[Outcome]]:
    """What becomes of each key of a config, and of those that it leaves out, in the words of `conversion.md`."""
    mapper = converted(system, body)
    results: defaultdict[str, list[Outcome]] = defaultdict(list)
    targets: defaultdict[str, list[str]] = defaultdict(list)
    reasons: defaultdict[str, list[str]] = defaultdict(list)
    added: defaultdict[str, list[str]] = defaultdict(list)
    for mapped in mapper.mapped:
        if mapped.is_default:
            added[mapped.key].append(f"{mapped.target}: {mapped.value}")
        else:
            targets[mapped.key].append(mapped.target)
    for unmapped in mapper.unmapped:
        reasons[str(unmapped.key)].append(unmapped.reason)
    for key in keys_of(body):
        if key not in targets and not any(key == listed or key.startswith(f"{listed}.") for listed in reasons):
            # Read together with another key: what changes without it says where it goes.
            targets[key] = _changed(mapper.body(), converted(system, _without(body, key.split("."))).body())
    approximated = {unmapped.key for unmapped in mapper.unmapped if unmapped.is_approximated}
    for key in {**targets, **reasons}:
        status = "approximated" if key in approximated else "same" if targets[key] else "no counterpart"
        results[key].append(Outcome(status, tuple(targets[key]), tuple(dict.fromkeys(reasons[key]))))
    for key, values in added.items():
        results[key].append(Outcome("same by an added key", tuple(values), ()))
    return results


def keys_of(body: JsonObject, prefix: str = "") -> Iterator[str]:
    """Dotted keys of the values in nested sections."""
    for name, value in body.items():
        if isinstance(value, dict) and value:
            yield from keys_of(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"


def _without(body: JsonObject, path: Sequence[str]) -> JsonObject:
    name, *rest = path
    if not rest:
        return {key: value for key, value in body.items() if key != name}
    return {**body, name: _without(body[name], rest)}


def _changed(with_key: JsonObject, without: JsonObject) -> list[str]:
    ours, others = _flat(with_key), _flat(without)
    return [key for key in {**ours, **others} if ours.get(key) != others.get(key)]


def _flat(body: JsonObject) -> dict[str, Any]:
    return {f"{section}.{key}": value for section, values in body.items() for key, value in values.items()}


def _table(system: str, kinds: Mapping[str, Sequence[JsonObject]]) -> str:
    """A row for each key and status, with the kinds of config in brackets where they differ."""
    found: defaultdict[str, defaultdict[str, defaultdict[str, list[Outcome]]]]
    found = defaultdict(lambda: defaultdict(lambda: defaultdict(list)))
    for kind, bodies in kinds.items():
        for body in bodies:
            for key, results in outcomes(system, body).items():
                for outcome in results:
                    # A value that another key repeats decides nothing in this config.
                    if outcome.targets or outcome.reasons:
                        found[key][outcome.status][kind].append(outcome)
    return table(("key", "status", "here"), (row for key in sorted(found) for row in _rows(key, found[key])))


def _rows(key: str, statuses: Mapping[str, Mapping[str, list[Outcome]]]) -> Iterator[tuple[str, str, str]]:
    for status, by_kind in statuses.items():
        texts: defaultdict[str, list[str]] = defaultdict(list)
        for kind, results in by_kind.items():
            targets = tuple(dict.fromkeys(target for outcome in results for target in outcome.targets))
            reasons = tuple(dict.fromkeys(reason for outcome in results for reason in outcome.reasons))
            texts[str(Outcome(status, targets, reasons))].append(kind)
        is_split = len(texts) > 1 or (len(statuses) > 1 and status != "same by an added key")
        for text, names in texts.items():
            yield f"`{key}`", status, f"{text} ({', '.join(names)})" if is_split else text
