import json
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

WORDS = st.lists(st.text(alphabet="abcxyz", min_size=2, max_size=8).filter(lambda word: word != "and"), min_size=1)


@pytest.mark.parametrize(
    ("answer", "expected", "verdict"),
    [
        ("2, 3, 5", "2, 3, 5", True),
        ("[2, 3, 5]", "2,3,5", True),
        ("2; 3; 5", "[2, 3, 5]", True),
        ("The primes are: 2, 3 and 5.", "2, 3, 5", True),
        ("The primes are 2, 3 and 5.", "2, 3, 5", True),
        ("Answer: 2, 3, 5\nThere are 3 of them.", "2, 3, 5", True),
        ("\\boxed{2, 3, 5}", "2, 3, 5", True),
        ("\\boxed{\\{2, 3, 5\\}}", "2, 3, 5", True),
        ("- Rome\n- Paris", "rome; paris", True),
        ("1. Rome\n2. Paris", '["Rome", "Paris"]', True),
        ("Rome\nParis", "rome, paris", True),
        ("Here you go: `['Rome', 'Paris']`", "Rome, Paris", True),
        ("1,000, 2,000", "1000, 2000", True),
        ("0.5, 1e3", "1/2, 1000", True),
        ("salt and pepper; bread", "salt and pepper; bread", True),
        ("3, 2, 5", "2, 3, 5", False),
        ("2, 3, 5, 5", "2, 3, 5", False),
        ("2, 3", "2, 3, 5", False),
        ("2, 3, 5, 7", "2, 3, 5", False),
        ("none", "2, 3, 5", False),
        ("2", "", None),
        ("2", "[]", None),
    ],
)
def test_lists_are_compared_element_by_element(find, answer: str, expected: str, verdict: bool | None) -> None:
    assert find("list", answer, expected).verified is verdict


@pytest.mark.parametrize(
    ("answer", "expected", "verdict"),
    [
        ("5, 2 and 3", "2, 3, 5", True),
        ("{5, 3, 2, 2}", "2, 3, 5", True),
        ("Paris & Rome", "rome, paris", True),
        ("0.3333333333, 1", "1, 1/3", True),
        ('["b", ["c", 1]]', '[["c", 1], "b"]', True),
        ("true, false", "[false, true]", True),
        ("2, 3", "2, 3, 5", False),
        ("2, 3, 5, 7", "2, 3, 5", False),
    ],
)
def test_sets_ignore_order_and_repeats(find, answer: str, expected: str, verdict: bool) -> None:
    assert find("set", answer, expected).verified is verdict


@given(WORDS, st.randoms(use_true_random=False))
def test_a_set_equals_itself_in_any_order(find, words: list[str], random: Random) -> None:
    shuffled = words + words[:2]
    random.shuffle(shuffled)
    assert find("set", ", ".join(shuffled), json.dumps(words)).verified is True
    assert find("set", json.dumps([*shuffled, "other"]), json.dumps(words)).verified is False
    assert find("list", json.dumps(words), json.dumps(words)).verified is True
