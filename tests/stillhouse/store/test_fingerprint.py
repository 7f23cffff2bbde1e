import subprocess
import sys

import pytest

from stillhouse.store import canonical_json, digest, prompt_id
from stillhouse.store.fingerprint import unit_interval
from stillhouse.types import Message

HELLO: list[Message] = [{"role": "user", "content": "Hello"}]


def test_the_order_of_keys_does_not_matter_and_that_of_a_list_does() -> None:
    assert digest({"a": 1, "b": [1, 2]}) == digest({"b": [1, 2], "a": 1}) != digest({"a": 1, "b": [2, 1]})


def test_a_digest_is_the_same_in_another_process() -> None:
    code = "from stillhouse.store import digest; print(digest({'x': ['é', 1.5, None]}))"
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    assert other == digest({"x": ["é", 1.5, None]})


@pytest.mark.parametrize("value", [{1, 2}, object(), float("nan")])
def test_what_has_no_stable_form_is_refused(value: object) -> None:
    with pytest.raises((TypeError, ValueError)):
        canonical_json(value)


def test_text_that_is_not_valid_unicode_still_has_an_identity() -> None:
    assert len(digest("\ud83d")) == 64


def test_a_prompt_is_its_messages_and_tools() -> None:
    assert prompt_id(HELLO, None) == prompt_id([{"content": "Hello", "role": "user"}], None)
    assert prompt_id(HELLO, None) != prompt_id(HELLO, [])
    assert prompt_id(HELLO, ["a", "b"]) == prompt_id(HELLO, ["b", "a"])
    assert prompt_id(HELLO, None) != prompt_id([*HELLO, *HELLO], None)


def test_split_numbers_are_spread_evenly_over_the_unit_interval() -> None:
    numbers = [unit_interval(0, str(index)) for index in range(4000)]
    assert all(0.0 <= number < 1.0 for number in numbers)
    assert abs(sum(number < 0.25 for number in numbers) / 4000 - 0.25) < 0.03
