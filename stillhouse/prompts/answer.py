"""The expected answer of a row, under the names that datasets give it."""

import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final

import orjson

from stillhouse.store import exact_json
from stillhouse.types import JsonObject

_PLACES: Final = (
    *("expected_answer", "reward_model.ground_truth", "answer", "ground_truth", "extra_env_info.ground_truth"),
    *("verification_info.ground_truth", "label", "final_answer", "solution", "extra_info.answer"),
)
"""Best first. verl has `reward_model`, NeMo-RL `extra_env_info`, SYNTHETIC-1 `verification_info`, OpenRLHF `label`."""
_TESTS: Final = (
    *("reward_model.ground_truth", "input_output", "verification_info.test_cases", "verifier_metadata.unit_tests"),
    *("unit_tests", "test_list"),
)
"""Where PRIME, APPS and TACO, open-r1, NeMo-Gym, and MBPP have test cases."""
_WORKED: Final = frozenset({"answer", "solution", "extra_info.answer"})
"""May be a whole solution, whose end states the answer: in GSM8K after `####`, in MATH as a box."""
_HASHES: Final = re.compile(r"^####[ \t]*(\S[^\n]*?)\s*\Z", re.MULTILINE)
_BOXED: Final = re.compile(r"\\boxed\s*\{((?:[^{}]|\{(?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*\})*)\}")
_EXACT_BELOW: Final = 1 << 53


def take_answer(row: JsonObject) -> tuple[str | None, str]:
    """Remove the expected answer from a row and return it as text, and what is in doubt: its column, or the choice.

    Test cases become `row["test_cases"]`. Objects of which a part is taken, and solutions whose end is, stay.

    Raises:
        ValueError: the answer is a float that may have lost digits.
    """
    tests = next((place for place in _TESTS if _is_tests(_at(row, place))), None)
    if tests and not row.get("test_cases"):
        row["test_cases"] = _at(row, tests)
        row.pop(tests, None)
    found = {place: text for place, text in _found(row) if place != tests}
    if not found:
        return None, ""
    taken, *others = found
    differing = [f"`{place}`" for place in others if found[place] != found[taken]]
    is_plain = taken in ("expected_answer", "answer") or taken.endswith("ground_truth")
    other = f", not {' or '.join(differing)}" if differing else ""
    if taken in row and (taken not in _WORKED or as_text(row[taken], taken) == found[taken]):
        del row[taken]
    note = f"have `{taken}` as expected answer{other}; name the one that is meant `expected_answer`"
    return found[taken], "" if is_plain and not differing else note


def as_text(value: Any, key: str) -> str | None:
    """Return a value as text: `true`, `false`, JSON of a list or object; None if it is null or blank.

    Raises:
        ValueError: it is a float that may have lost digits.
    """
    if value is None or (isinstance(value, str) and not value.strip()):
        return None
    if isinstance(value, dict | list | bool):
        return exact_json.dumps(value).decode()
    if isinstance(value, float) and value.is_integer():
        if abs(value) >= _EXACT_BELOW:
            raise ValueError(f"expected all digits of {key}, saw the float {value}: quote it as text")
        # Integer columns with gaps are read as floats.
        return str(int(value))
    return str(value)


def _found(row: JsonObject) -> Iterator[tuple[str, str]]:
    for place in _PLACES:
        value = _at(row, place)
        if place == "label" and isinstance(value, bool):
            # KTO's rows say whether a completion is liked.
            continue
        text = as_text(value, place)
        if place in _WORKED and text:
            ends = set(_HASHES.findall(text) or _BOXED.findall(text))
            # A solution that marks no one answer may be anything, code for instance.
            text = ends.pop() if len(ends) == 1 else None if place == "solution" and "\n" in text.strip() else text
        if text:
            yield place, text


def _at(row: JsonObject, place: str) -> Any:
    """Return the value of a column, or of a key of the object in a column."""
    column, _, key = place.partition(".")
    if not key:
        return row.get(column)
    value = _decoded(row.get(column))
    part = value.get(key) if isinstance(value, dict) else None
    # Some of verl's rows hold a list of the one answer.
    alone = _decoded(part) if key == "ground_truth" else None
    return alone[0] if isinstance(alone, list) and len(alone) == 1 and not isinstance(alone[0], dict) else part


def _is_tests(value: Any) -> bool:
    value = _decoded(value)
    if isinstance(value, dict):
        return {"inputs", "outputs"} <= value.keys()
    return (
        isinstance(value, list)
        and bool(value)
        and all(
            {"input", "output"} <= item.keys() if isinstance(item, dict) else str(item).lstrip().startswith("assert")
            for item in value
        )
    )


def _decoded(value: Any) -> Any:
    if isinstance(value, str) and value.lstrip().startswith(("{", "[")):
        with suppress(orjson.JSONDecodeError):
            return exact_json.loads(value)
    return value
