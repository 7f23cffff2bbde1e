"""The expected answer of a row, under the names that datasets give it."""

from contextlib import suppress
from typing import Any, Final

import orjson

from stillhouse.store import exact_json
from stillhouse.types import JsonObject

_ANSWERS: Final = (
    *("expected_answer", "reward_model.ground_truth", "answer", "ground_truth", "verification_info.ground_truth"),
    *("label", "solution"),
)
"""Best first. verl has `reward_model`, SYNTHETIC-1 `verification_info`, OpenRLHF `label`, MATH `solution`."""
_DOUBTFUL: Final = frozenset({"label", "solution"})
_TESTS: Final = ("reward_model.ground_truth", "verification_info.test_cases", "input_output", "test_list")
"""Where PRIME, open-r1, APPS and TACO, and MBPP have test cases."""
_EXACT_BELOW: Final = 1 << 53


def take_answer(row: JsonObject) -> tuple[str | None, str]:
    """Remove the expected answer from a row and return it as text, and what is in doubt: its column, or the choice.

    Test cases become `row["test_cases"]`. Objects of which a part is taken stay. Verifiers read the end of a solution.
    Raises ValueError if the answer is a float that may have lost digits.
    """
    if not row:
        return None, ""
    tests = next((place for place in _TESTS if _are_tests(_at(row, place))), None)
    if tests and not row.get("test_cases"):
        row["test_cases"] = _at(row, tests)
        row.pop(tests, None)
    found = {place: text for place in _ANSWERS if place != tests and (text := _text_at(row, place))}
    if not found:
        return None, ""
    taken, answer = next(iter(found.items()))
    row.pop(taken, None)
    others = [f"`{place}`" for place, text in found.items() if text != answer and place != "solution"]
    if not others and taken not in _DOUBTFUL:
        return answer, ""
    other = f", not {' or '.join(others)}" if others else ""
    return answer, f"have `{taken}` as expected answer{other}; name the one that is meant `expected_answer`"


def as_text(value: Any, key: str) -> str | None:
    """Return a value as text: `true`, `false`, JSON of a list or object; None if it is null or blank.

    Raises ValueError if it is a float that may have lost digits.
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


def _text_at(row: JsonObject, place: str) -> str | None:
    value = _at(row, place)
    # KTO's label says whether a completion is liked; a solution without a box may be code.
    if (place == "label" and isinstance(value, bool)) or (place == "solution" and "\\boxed" not in str(value)):
        return None
    return as_text(value, place)


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


def _are_tests(value: Any) -> bool:
    value = _decoded(value)
    if not isinstance(value, list):
        return isinstance(value, dict) and {"inputs", "outputs"} <= value.keys()
    return bool(value) and all(
        {"input", "output"} <= item.keys() if isinstance(item, dict) else str(item).lstrip().startswith("assert")
        for item in value
    )


def _decoded(value: Any) -> Any:
    if isinstance(value, str) and value.lstrip().startswith(("{", "[")):
        with suppress(orjson.JSONDecodeError):
            return exact_json.loads(value)
    return value
